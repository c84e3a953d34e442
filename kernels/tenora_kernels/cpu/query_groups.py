"""Sequences of one step arranged in groups of like size, each padded to one batch for torch.

Knows rows, context lengths and block tables; the attention itself is in paged_attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tenora_kernels.cpu.scratch import Scratch

# Padding at most quadruples a group's queries or context; the classes are bounded in number.
QUERY_CLASSES = (1, 4, 16, 64, 256, 1024)
CONTEXT_CLASSES = (128, 512, 2048, 8192, 32768)
TOKENS_PER_SPLIT = 16384  # padded context tokens of one group: bounds the gathered keys


@dataclass(frozen=True)
class QueryGroup:
    """Sequences attended to in one padded batch. Queries are aligned to the end: query j of a
    sequence with `length` queries stands at `query_len - length + j`."""

    rows: Tensor  # [n * query_len] int64, padding repeats the sequence's first row
    real: Tensor | None  # [rows] int64, positions of `rows` that are not padding; None: all are
    query_len: int
    context: Tensor  # [n] int64
    context_max: int
    block_table: Tensor  # [n, max_blocks] int64
    scratch: Scratch = field(default_factory=Scratch)
    prepared: dict[tuple[int, torch.dtype], PreparedGroup] = field(default_factory=dict)

    def prepare(self, block_tokens: int, dtype: torch.dtype) -> PreparedGroup:
        """What depends on the page size and dtype; made by the step's first layer, then kept."""
        key = (block_tokens, dtype)
        if key not in self.prepared:
            self.prepared[key] = _prepare(self, block_tokens, dtype)
        return self.prepared[key]


@dataclass(frozen=True)
class PreparedGroup:
    """A group's pages and masks for one page size."""

    pages: Tensor  # [n * blocks] int64
    padded_len: int  # blocks * block_tokens
    stale: Tensor  # [m] int64, positions in n * padded_len past their sequence's context
    bias: Tensor  # [n, 1, query_len or 1, padded_len], 0 or -inf


def build_query_groups(
    starts: Tensor,  # [num_seqs] int64, first query row
    query: Tensor,  # [num_seqs] int64
    context: Tensor,  # [num_seqs] int64
    block_table: Tensor,  # [num_seqs, max_blocks] int32
) -> tuple[QueryGroup, ...]:
    """Every sequence lies in exactly one group."""
    if query.shape[0] == 0:
        return ()
    query_class = torch.bucketize(query, torch.tensor(QUERY_CLASSES))
    context_class = torch.bucketize(context, torch.tensor(CONTEXT_CLASSES))
    key = query_class * (len(CONTEXT_CLASSES) + 1) + context_class
    table = block_table.long()
    groups: list[QueryGroup] = []
    for value in torch.unique(key).tolist():
        members = (key == value).nonzero()[:, 0]
        at_once = max(1, TOKENS_PER_SPLIT // int(context[members].max()))
        for part in members.split(at_once):
            groups.append(_group(starts[part], query[part], context[part], table[part]))
    return tuple(groups)


def _group(starts: Tensor, query: Tensor, context: Tensor, table: Tensor) -> QueryGroup:
    query_len = int(query.max())
    within = torch.arange(query_len) - (query_len - query)[:, None]
    real = within >= 0
    rows = starts[:, None] + within.clamp(min=0)
    return QueryGroup(
        rows=rows.flatten(),
        real=None if bool(real.all()) else real.flatten().nonzero()[:, 0],
        query_len=query_len,
        context=context,
        context_max=int(context.max()),
        block_table=table,
    )


def _prepare(group: QueryGroup, block_tokens: int, dtype: torch.dtype) -> PreparedGroup:
    blocks = -(-group.context_max // block_tokens)
    padded_len = blocks * block_tokens
    position = torch.arange(padded_len)
    context = group.context[:, None]
    last_seen = context - group.query_len + torch.arange(group.query_len)  # [n, query_len]
    # A padding query sees position 0, so that its softmax is finite; its result is dropped.
    hidden = position > last_seen.clamp(min=0)[..., None]
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return PreparedGroup(
        pages=group.block_table[:, :blocks].flatten(),
        padded_len=padded_len,
        stale=(position >= context).flatten().nonzero()[:, 0],
        bias=bias[:, None],
    )
