"""All layers of one step in one call of the compiled library. Weights are handed over packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tenora_kernels.compiled.linear import PackedWeight
from tenora_kernels.segments import AdapterTable, KVLayout

NO_NUMBER = -2
"""In place of a token: none of its logits is a number, or the highest is infinite."""

PARTS = ("gemm", "sgmv", "attention", "elementwise", "lm head", "waiting", "sampling")
"""What a step's time is charged to: `waiting` is for the other threads, at a phase's end. A product
and the shrinking half of sgmv share a phase."""


@dataclass(frozen=True)
class PackedProjection:
    weight: PackedWeight
    bias: Tensor | None = None  # [out]

    @property
    def tensors(self) -> list[Tensor | None]:
        return [self.weight.packed, self.weight.scales, self.bias]


@dataclass(frozen=True, kw_only=True)
class PackedLayer:
    """Attention, then a gated MLP with SiLU. Norms are of what each of them reads (`_in`), and of
    what it adds to the residual stream (`_out`)."""

    attention_in: Tensor | None = None  # [hidden]
    attention_out: Tensor | None = None  # [hidden]
    mlp_in: Tensor | None = None  # [hidden]
    mlp_out: Tensor | None = None  # [hidden]
    query_norm: Tensor | None = None  # [head_dim], or [heads * head_dim]: of a whole row
    key_norm: Tensor | None = None  # [head_dim], or [kv_heads * head_dim]
    cos: Tensor  # [max_positions, rotary_dim / 2] float32
    sin: Tensor  # [max_positions, rotary_dim / 2] float32
    qkv: PackedProjection
    out: PackedProjection
    gate_up: PackedProjection
    down: PackedProjection

    @property
    def tensors(self) -> list[Tensor | None]:
        found = [
            self.attention_in,
            self.attention_out,
            self.mlp_in,
            self.mlp_out,
            self.query_norm,
            self.key_norm,
            self.cos,
            self.sin,
        ]
        for projection in (self.qkv, self.out, self.gate_up, self.down):
            found += projection.tensors
        return found


@dataclass(frozen=True)
class DecoderSizes:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


class Masks(NamedTuple):
    """Which tokens may be chosen after rows."""

    mask_of: Tensor  # [num_wanted] int32: a row's place in `masks`, negative where it has none
    masks: Tensor  # [num_masks * ceil(vocab / 32)] int32, a bit each, the first token the lowest


class StepRows(NamedTuple):
    """One flat ragged batch: the rows of each sequence side by side, oldest first."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slots: Tensor  # [num_tokens] int64, page * block_tokens + offset
    query_start: Tensor  # [num_seqs + 1] int32
    context_len: Tensor  # [num_seqs] int32
    block_table: Tensor  # [num_seqs, max_blocks] int32
    row_slot: Tensor  # [num_tokens] int32, adapter slots
    wanted: Tensor  # [num_wanted] int64, rows whose next token is asked for


class Progress:
    """How far a step has come that may be paused: between two layers it is its residual stream.

    `pause` is looked at after each layer: while it is not 0 the step stops there, and other steps
    may be run before it goes on. Any thread may write to it.
    """

    def __init__(self, pause: Tensor) -> None:  # [1] int32
        self.pause = pause
        self.layer = 0  # the next
        self.residual: Tensor | None = None  # [num_tokens, hidden]


class StepDecoder:
    """A decoder in float32 or bfloat16 on the CPU. One thread at a time may call it.

    Raises RuntimeError when tensors do not fit together: it checks what memory safety needs.
    """

    def __init__(
        self,
        sizes: DecoderSizes,
        layers: Sequence[PackedLayer],
        embedding: Tensor | None,  # [vocab, hidden]; None: the head's weights serve as embedding
        final_norm: Tensor,  # [hidden]
        head: PackedWeight,  # [vocab, hidden]
        norm_eps: float,
        attention_scale: float,
    ) -> None:
        # In the order of the library; an empty tensor stands for one that is not there.
        of_layers = [tensor for layer in layers for tensor in layer.tensors]
        of_model = [embedding, final_norm, *PackedProjection(head).tensors]
        absent = final_norm.new_empty(0)
        self._decoder = torch.classes.tenora.Decoder(
            [absent if tensor is None else tensor for tensor in of_layers],
            [absent if tensor is None else tensor for tensor in of_model],
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
        nothing = torch.empty(0, dtype=torch.int32)
        self._no_masks = Masks(nothing, nothing)
        self._num_layers = len(layers)
        self._residual = final_norm.new_empty(0, sizes.hidden)
        # Looked up once: torch makes a new object for a method each time it is asked for.
        self._next_logits = self._decoder.next_logits
        self._next_tokens = self._decoder.next_tokens
        self._advance_logits = self._decoder.advance_logits
        self._advance_tokens = self._decoder.advance_tokens

    def use_arena(
        self,
        pool: Tensor,  # [num_pages, page_elements], in the model's dtype
        adapters: Tensor,  # [elements], what `table` counts in: the model's dtype or int8
        kv: KVLayout,
        table: AdapterTable,
    ) -> None:
        """Where KV and adapters lie in all steps from now on."""
        tables = [table.granule_offset, table.rank, table.a_offset, table.b_offset, table.scale]
        self._decoder.use_arena(pool, adapters, kv.block_tokens, tables)

    def next_logits(self, rows: StepRows) -> Tensor:  # [num_wanted, vocab]
        """Write the rows' KV, return the wanted rows' logits in the model's dtype."""
        logits: Tensor = self._next_logits(*rows)
        return logits

    def next_tokens(self, rows: StepRows, masks: Masks | None = None) -> list[int]:
        """Write the rows' KV, return the likeliest token of each wanted row: the first of equals,
        as in `next_logits`. A NaN is never the likeliest, nor what a row's mask does not allow.
        NO_NUMBER where none is a number, or the highest is infinite."""
        tokens: list[int] = self._next_tokens(*rows, *(masks or self._no_masks))
        return tokens

    def advance_logits(self, rows: StepRows, progress: Progress) -> Tensor | None:
        """As `next_logits`, from where the step is; None where it was paused, and is to be called
        with the same again. The results are the same to the bit."""
        logits: Tensor
        progress.layer, logits = self._advance_logits(*self._state(rows, progress), *rows)
        return logits if progress.layer == self._num_layers else None

    def advance_tokens(
        self, rows: StepRows, progress: Progress, masks: Masks | None = None
    ) -> list[int] | None:
        """As `next_tokens` and `advance_logits`."""
        tokens: list[int]
        state = self._state(rows, progress)
        progress.layer, tokens = self._advance_tokens(*state, *rows, *(masks or self._no_masks))
        return tokens if progress.layer == self._num_layers else None

    def _state(self, rows: StepRows, progress: Progress) -> tuple[Tensor, int, Tensor]:
        if progress.residual is None:
            progress.residual = self._residual.new_empty(
                len(rows.token_ids), self._residual.shape[1]
            )
        return progress.residual, progress.layer, progress.pause

    def take_seconds(self) -> dict[str, float]:
        """Where the calling thread's time in `step` went since the last call, by PARTS."""
        return dict(zip(PARTS, self._decoder.take_seconds(), strict=True))
