"""Rows of one step arranged for dense matrix products, with the places of their adapters' weights.

Knows how rows, slots and the adapter table relate; the products themselves are in sgmv.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tenora_kernels.cpu.scratch import Scratch
from tenora_kernels.segments import AdapterTable

# Segments of like length are padded or blended together; the last class is open.
LENGTH_CLASSES = (4, 32, 256)
RANK_CLASSES = (16, 64)
# A mask of all layers is made at once up to this many entries (bytes), per layer beyond.
MASK_ENTRIES_MAX = 4_000_000


@dataclass(frozen=True)
class BlendedBlock:
    """Rows multiplied with the rank rows of all their adapters at once; what is not a row's own is
    masked out of the rank-sized intermediate. Rank rows are sorted by (layer, module, adapter).

    Masked rather than multiplied by 0: another adapter's weights must not reach a row even when
    its products overflow to infinity.
    """

    rows: slice | Tensor  # slice, or [n] int64
    row_adapter: Tensor  # [n] int64, position among the block's adapters, -1 for base rows
    adapter: Tensor  # [rank_rows] int64, position among the block's adapters
    a_index: Tensor  # [rank_rows] int64, element of the pool where the A row starts
    b_index: Tensor  # [rank_rows] int64, where the B^T row starts
    scale: Tensor  # [rank_rows] float32
    bounds: list[int]  # [layers * modules + 1], first rank row of each (layer, module)
    foreign: Tensor | None  # [n, rank_rows] bool, True where the rank row is not the row's own
    shared: bool  # one adapter, no base rows: nothing to mask
    scratch: Scratch = field(default_factory=Scratch)

    def foreign_to(self, first: int, last: int) -> Tensor | None:
        """The mask of rank rows first:last, None when there is nothing to mask."""
        if self.shared:
            return None
        if self.foreign is not None:
            return self.foreign[:, first:last]
        return self.row_adapter[:, None] != self.adapter[None, first:last]


@dataclass(frozen=True)
class PaddedBlock:
    """Segments of one adapter each, padded to one length and rank: one batched product."""

    rows: Tensor  # [n * length] int64, padding repeats the segment's first row
    real: Tensor | None  # [rows] int64, the positions of `rows` that are not padding; None: all
    slots: Tensor  # [n] int64
    length: int
    rank_max: list[list[int]]  # [layers][modules]
    scratch: Scratch = field(default_factory=Scratch)


RowBlock = BlendedBlock | PaddedBlock


def build_row_blocks(
    row_slot: Tensor,  # [num_rows] int32
    starts: Tensor,  # [runs] int64
    lengths: Tensor,  # [runs] int64
    slots: Tensor,  # [runs] int64
    table: AdapterTable,
) -> tuple[RowBlock, ...]:
    """Every run with an adapter lies in exactly one block.

    Each length class becomes one blended block, or padded blocks by rank class where that is less
    work: blending costs rows x all ranks, padding costs runs x longest x largest rank.
    """
    rank = table.rank[slots].flatten(1).amax(1).long()
    bins = torch.bucketize(lengths, torch.tensor(LENGTH_CLASSES))
    blocks: list[RowBlock] = []
    for length_class in torch.unique(bins).tolist():
        runs = (bins == length_class).nonzero()[:, 0]
        split = [runs[part] for part in _rank_parts(rank[runs])]
        padded = sum(_padded_cost(lengths[part], rank[part]) for part in split)
        if _blended_cost(lengths[runs], rank[runs], slots[runs]) <= padded:
            blocks.append(_blend(row_slot, starts[runs], lengths[runs], table))
        else:
            blocks.extend(_pad(starts[p], lengths[p], slots[p], table) for p in split)
    return tuple(blocks)


def _rank_parts(rank: Tensor) -> list[Tensor]:
    bins = torch.bucketize(rank, torch.tensor(RANK_CLASSES))
    return [(bins == rank_class).nonzero()[:, 0] for rank_class in torch.unique(bins).tolist()]


def _blended_cost(lengths: Tensor, rank: Tensor, slots: Tensor) -> float:
    """Nanoseconds per feature: the product at 150 GFLOP/s, the gather at 10 GB/s."""
    distinct, first = torch.unique(slots, return_inverse=True)
    ranks = torch.zeros_like(distinct).scatter_(0, first, rank).sum()
    return float(lengths.sum() * ranks) / 75 + 0.4 * float(ranks)


def _padded_cost(lengths: Tensor, rank: Tensor) -> float:
    """As _blended_cost, the batched product at 100 GFLOP/s, and 30 for the extra calls."""
    rank_rows = float(lengths.shape[0] * rank.max())
    return rank_rows * float(lengths.max()) / 50 + 0.4 * rank_rows + 30


def _run_rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """The rows of all runs, one after another."""
    first = lengths.cumsum(0) - lengths
    run = torch.repeat_interleave(torch.arange(starts.shape[0]), lengths)
    return starts[run] + torch.arange(run.shape[0]) - first[run]


def _blend(row_slot: Tensor, starts: Tensor, lengths: Tensor, table: AdapterTable) -> BlendedBlock:
    chosen = _run_rows(starts, lengths)
    first, last = int(chosen[0]), int(chosen[-1]) + 1
    span = row_slot[first:last]
    rows: slice | Tensor = chosen
    if int((span >= 0).sum()) == chosen.shape[0] and last - first <= 2 * chosen.shape[0]:
        rows = slice(first, last)  # only base rows between them: views are cheaper than gathers
    row_slots = row_slot[rows]
    slots = torch.unique(row_slots[row_slots >= 0]).long()
    rank = table.rank[slots].permute(1, 2, 0)  # [layers, modules, adapters]
    largest = max(1, int(rank.max()))
    present = torch.arange(largest) < rank[..., None]
    index = present.flatten().nonzero()[:, 0]

    def flat(per_adapter: Tensor) -> Tensor:  # [adapters, layers, modules or 1, ranks or 1]
        return per_adapter.transpose(0, 1).transpose(1, 2).expand(present.shape).reshape(-1)[index]

    granule = table.granule_offset[slots][:, :, None, :largest]
    adapter = flat(
        torch.arange(slots.shape[0])[:, None, None, None].expand(-1, rank.shape[0], 1, 1)
    )
    row_adapter = torch.searchsorted(slots, row_slots.long())
    row_adapter = torch.where(row_slots >= 0, row_adapter, -1)
    shared = slots.shape[0] == 1 and bool((row_adapter == 0).all())
    small = row_adapter.shape[0] * index.shape[0] <= MASK_ENTRIES_MAX
    return BlendedBlock(
        rows=rows,
        row_adapter=row_adapter,
        adapter=adapter,
        a_index=flat(granule + table.a_offset[slots][..., None]),
        b_index=flat(granule + table.b_offset[slots][..., None]),
        scale=flat(table.scale[slots][..., None]),
        bounds=[0, *rank.sum(2).flatten().cumsum(0).tolist()],
        foreign=row_adapter[:, None] != adapter if small and not shared else None,
        shared=shared,
    )


def _pad(starts: Tensor, lengths: Tensor, slots: Tensor, table: AdapterTable) -> PaddedBlock:
    length = int(lengths.max())
    within = torch.arange(length)
    real = within < lengths[:, None]
    rows = starts[:, None] + torch.where(real, within, 0)
    return PaddedBlock(
        rows=rows.flatten(),
        real=None if bool(real.all()) else real.flatten().nonzero()[:, 0],
        slots=slots,
        length=length,
        rank_max=table.rank[slots].amax(0).tolist(),
    )
