"""The tensors that tell a kernel where things lie in the page arena, and which rows are whose.

Nothing here knows a request, a tenant or a scheduler: slots, pages, offsets and row bounds only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

BASE_SLOT = -1
"""The adapter slot of a row that runs on the base model alone."""


@dataclass(frozen=True)
class KVLayout:
    """How one KV page of the arena is laid out: `[layer, 2, block_tokens, kv_heads, head_dim]`."""

    num_layers: int
    block_tokens: int
    kv_heads: int
    head_dim: int

    @property
    def page_elements(self) -> int:
        return self.num_layers * 2 * self.block_tokens * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class AdapterTable:
    """Where each resident adapter's weights lie, by slot. Updated in place as adapters come and go.

    An adapter's page holds granules, one per (layer, rank row). A granule holds, for every module
    of that layer whose rank exceeds the row, the module's A row then its B^T row, the modules in
    order of falling rank, so that a module's offset within the granule is the same for all its
    rank rows and nothing is padded. Offsets count elements of the flat arena.
    """

    granule_offset: Tensor  # [slots, layers, max_rank] int64, into the flat arena
    rank: Tensor  # [slots, layers, modules] int32, 0 where the adapter lacks the module
    a_offset: Tensor  # [slots, layers, modules] int32, within the granule
    b_offset: Tensor  # [slots, layers, modules] int32, within the granule
    scale: Tensor  # [slots, layers, modules] float32, alpha / r (or alpha / sqrt(r))


@dataclass(frozen=True)
class AttentionLayout:
    """One step's ragged queries over paged KV. Sequence i owns query rows
    `query_start[i]:query_start[i+1]`, which are the last tokens of its `context_len[i]` tokens."""

    query_start: Tensor  # [num_seqs + 1] int32
    context_len: Tensor  # [num_seqs] int32, this step's tokens included
    block_table: Tensor  # [num_seqs, max_blocks] int32, arena page numbers
    max_query_len: int
    max_context_len: int
