"""A trained draft layer by the compiled library: all of its chains in one call. Weights are handed
over packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from tenora_kernels.compiled.decoder import DecoderSizes, PackedProjection, Progress
from tenora_kernels.compiled.linear import PackedWeight
from tenora_kernels.segments import KVLayout


@dataclass(frozen=True, kw_only=True)
class DraftWeights:
    """In the order of the library."""

    embedding: Tensor | None  # [vocab, hidden]; None: the decoder's head serves as embedding
    lm_head: PackedWeight  # [vocab, hidden], the decoder's
    base_norm: Tensor  # [hidden], its final one
    embedding_norm: Tensor  # [hidden]
    state_norm: Tensor  # [hidden]
    attention_norm: Tensor  # [hidden]
    mlp_norm: Tensor  # [hidden]
    final_norm: Tensor  # [hidden]
    join: PackedWeight  # [hidden, 2 * hidden]: of an embedding and a state side by side
    query: PackedWeight  # [heads * head_dim, hidden]
    out: PackedWeight  # [hidden, heads * head_dim]
    gate_up: PackedWeight  # [2 * intermediate, hidden]
    down: PackedWeight  # [hidden, intermediate]
    head: PackedWeight  # [known, hidden]
    vocabulary: Tensor  # [known] int64: the tokens that it can foretell
    cos: Tensor  # [max_positions, rotary_dim / 2] float32, of the decoder's last layer
    sin: Tensor  # [max_positions, rotary_dim / 2] float32

    @property
    def own_bytes(self) -> int:
        """What it takes beside the decoder's weights."""
        packed = (self.join, self.query, self.out, self.gate_up, self.down, self.head)
        parts = [part for weight in packed for part in weight.tensors]
        norms = (self.embedding_norm, self.state_norm, self.attention_norm, self.mlp_norm)
        return sum(part.nbytes for part in (*parts, *norms, self.final_norm, self.vocabulary))

    def tensors(self) -> list[Tensor]:
        """An empty tensor stands for one that is not there."""
        absent, found = self.base_norm.new_empty(0), []
        for field in fields(self):
            value = getattr(self, field.name)
            parts = PackedProjection(value).tensors if isinstance(value, PackedWeight) else [value]
            found += [absent if part is None else part for part in parts]
        return found


class Seeds(NamedTuple):
    """From where chains start: sequences of which a token has just been sampled. Of each:"""

    last: Sequence[int]  # of the step's tokens the one before
    token_ids: Sequence[int]  # the sampled one
    positions: Sequence[int]  # of that
    table_rows: Sequence[int]  # where its pages are in the step's block table


class DraftLayer:
    """One thread at a time may call it. Raises RuntimeError when tensors do not fit together."""

    def __init__(
        self, sizes: DecoderSizes, weights: DraftWeights, norm_eps: float, attention_scale: float
    ) -> None:
        self._layer = torch.classes.tenora.DraftLayer(
            weights.tensors(),
            [
                sizes.hidden,
                sizes.intermediate,
                sizes.heads,
                sizes.kv_heads,
                sizes.head_dim,
                sizes.vocab,
            ],
            norm_eps,
            attention_scale,
        )
        self._propose = self._layer.propose

    def propose(
        self,
        progress: Progress,  # of the step that sampled, which has ended
        seeds: Seeds,
        block_table: Tensor,  # [num_seqs, max_blocks] int32, the step's
        pool: Tensor,  # [num_pages, page_elements], with the KV of all before
        kv: KVLayout,
        count: int,
        least_chance: float = 0.0,
    ) -> list[list[int]]:  # [rows][at most count]
        """The likeliest tokens behind each, one after the other, as long as all of them together
        are as likely as that."""
        chains: list[int]
        lengths: list[int]
        chains, lengths = self._propose(
            progress.residual,
            seeds.last,
            seeds.token_ids,
            seeds.positions,
            block_table,
            seeds.table_rows,
            pool,
            kv.num_layers,
            kv.block_tokens,
            count,
            least_chance,
        )
        return [chains[row * count : row * count + length] for row, length in enumerate(lengths)]
