"""The tensors that tell a kernel where things lie in the page arena, and which rows are whose.

Nothing here knows a request, a tenant or a scheduler: slots, pages, offsets and row bounds only.
What a step needs once for all its layers is worked out here, by the two builders.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.tiles import ContextParts, Move, RowTiles, cut_contexts, cut_into_tiles

if TYPE_CHECKING:
    from tenora_kernels.cpu.query_groups import QueryGroup
    from tenora_kernels.cpu.row_blocks import RowBlock

BASE_SLOT = -1
"""The adapter slot of a row that runs on the base model alone."""

SCALE_BYTES = 4
"""What a row of int8 weights has right before it: its scale, float32."""


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

    The arena's elements are of the activations' dtype, or int8. Then each A row and each B^T row
    has a float32 right before it (SCALE_BYTES) by which its integers are to be multiplied, and
    offsets count bytes (docs/decisions/0006-int8-adapter-pages.md).
    """

    granule_offset: Tensor  # [slots, layers, max_rank] int64, into the flat arena
    rank: Tensor  # [slots, layers, modules] int32, 0 where the adapter lacks the module
    a_offset: Tensor  # [slots, layers, modules] int32, within the granule
    b_offset: Tensor  # [slots, layers, modules] int32, within the granule
    scale: Tensor  # [slots, layers, modules] float32, alpha / r (or alpha / sqrt(r))
    alignment: int = 1  # every offset is a multiple of it: see `common_alignment`


def common_alignment(sizes: Iterable[int]) -> int:
    """The largest power of two up to 8 that divides all sizes: what offsets into the arena are
    multiples of when pages and adapter rows have these sizes. 8 elements of 16 bits are the widest
    load of a GPU's thread."""
    return math.gcd(8, *sizes)


@dataclass(frozen=True)
class AdapterSegments:
    """Which adapter each row of one step runs on. Made by `build_segments`, used by every sgmv."""

    num_rows: int
    any_adapter: bool  # False: every row runs on the base model, sgmv returns at once
    row_slot: Tensor  # [num_rows] int32, BASE_SLOT where there is no adapter
    tiles: RowTiles | None = None  # CUDA: the launch grid
    table: AdapterTable | None = None  # CPU: what blocks are made from when they are asked for
    fixed_order: bool = False  # CUDA: a row's sums do not depend on what else the step has
    made: list[tuple[RowBlock, ...]] = field(default_factory=list)

    def blocks(self) -> tuple[RowBlock, ...]:
        """The rows arranged for torch, with the gather indices of their adapters' weights; made
        when first asked for, within the step.

        Raises KernelInputError when the segments were made for a CUDA device.
        """
        if not self.made:
            self.made.append(self._make_blocks())
        return self.made[0]

    def moved(self, move: Move) -> AdapterSegments:
        """The CUDA form with all its tensors elsewhere."""
        assert self.tiles is not None
        return replace(self, row_slot=move(self.row_slot), tiles=self.tiles.moved(move))

    def tensors(self) -> tuple[Tensor, ...]:
        """Of the CUDA form all, in the order in which they are moved."""
        assert self.tiles is not None
        return self.row_slot, self.tiles.packed

    def _make_blocks(self) -> tuple[RowBlock, ...]:
        from tenora_kernels.cpu.row_blocks import build_row_blocks

        if self.table is None:
            raise KernelInputError("segments made for a CUDA device have no row blocks")
        starts, lengths, slots = find_runs(self.row_slot)
        return build_row_blocks(self.row_slot, starts, lengths, slots, self.table)


@dataclass(frozen=True)
class AttentionLayout:
    """One step's ragged queries over paged KV. Sequence i owns query rows
    `query_start[i]:query_start[i+1]`, which are the last tokens of its `context_len[i]` tokens.
    Made by `build_attention_layout`."""

    query_start: Tensor  # [num_seqs + 1] int32
    context_len: Tensor  # [num_seqs] int32, this step's tokens included
    block_table: Tensor
    """[num_seqs, max_blocks] int32, arena page numbers. CUDA: [num_blocks], those of one sequence
    behind those of the one before."""
    max_query_len: int
    max_context_len: int
    num_rows: int
    block_start: Tensor | None = None  # CUDA: [num_seqs] int32, where a sequence's blocks begin
    decode: ContextParts | None = None  # CUDA: sequences with one query row
    prefill: RowTiles | None = None  # CUDA: the rows of all others
    fixed_order: bool = False  # CUDA: a row's sums do not depend on what else the step has

    @property
    def max_blocks(self) -> int:
        """At least those of the longest sequence."""
        return self.block_table.shape[-1]

    def moved(self, move: Move) -> AttentionLayout:
        """The CUDA form with all its tensors elsewhere; the blocks, which may be any number, are
        moved last."""
        assert self.block_start is not None
        assert self.decode is not None
        assert self.prefill is not None
        return replace(
            self,
            query_start=move(self.query_start),
            context_len=move(self.context_len),
            block_start=move(self.block_start),
            decode=self.decode.moved(move),
            prefill=self.prefill.moved(move),
            block_table=move(self.block_table),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """Of the CUDA form all, in the order in which they are moved."""
        assert self.block_start is not None
        assert self.decode is not None
        assert self.prefill is not None
        return (
            self.query_start,
            self.context_len,
            self.block_start,
            self.decode.packed,
            self.prefill.packed,
            self.block_table,
        )

    @cached_property
    def groups(self) -> tuple[QueryGroup, ...]:
        """On the CPU: sequences of like size, padded to one batch for torch; made when first asked
        for, within the step."""
        from tenora_kernels.cpu.query_groups import build_query_groups

        starts = self.query_start.long()
        return build_query_groups(
            starts[:-1], starts.diff(), self.context_len.long(), self.block_table
        )


def find_runs(
    row_slot: Tensor,  # [num_rows] int32, on the CPU
) -> tuple[Tensor, Tensor, Tensor]:
    """(start, length, slot), each `[num_runs]` int64, of the runs of equal slots, base runs
    left out."""
    slots, lengths = torch.unique_consecutive(row_slot.long(), return_counts=True)
    starts = lengths.cumsum(0) - lengths
    adapted = slots != BASE_SLOT
    return starts[adapted], lengths[adapted], slots[adapted]


def find_adapted_runs(
    row_slot: npt.NDArray[np.int32],  # [num_rows]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`find_runs` of an array, which takes a fifth of the time."""
    ends = np.append(np.flatnonzero(row_slot[1:] != row_slot[:-1]) + 1, len(row_slot))
    starts = np.append(0, ends[:-1])
    slots = row_slot[starts[: len(row_slot)]].astype(np.int64)
    adapted = slots != BASE_SLOT
    return starts[adapted], (ends - starts)[adapted], slots[adapted]


def build_segments(
    row_slot: Tensor,  # [num_tokens] int32, best on the CPU: it is read there
    table: AdapterTable,
    *,
    max_segments: int | None = None,
    tiles: bool | None = None,
    device: torch.device | None = None,  # None: the table's
    fixed_order: bool = False,
) -> AdapterSegments:
    """What sgmv needs about one step.

    Rows of one adapter should be contiguous (more runs are right, but slower). `max_segments`
    bounds the runs for a CUDA launch grid that stays the same from step to step; None makes room
    for these alone. `tiles` asks for the CUDA form on any device (tests do), `fixed_order` there
    for sums whose order the step does not change, which takes longer.

    Raises KernelInputError when a slot is outside the table or `row_slot` is not int32 `[n]`.
    """
    if row_slot.dim() != 1 or row_slot.dtype != torch.int32:
        raise KernelInputError(f"row_slot is {row_slot.dtype} {list(row_slot.shape)}, needs int32")
    if device is None:
        device = table.rank.device
    host_slots = row_slot.cpu()
    num_rows, num_slots = row_slot.shape[0], table.rank.shape[0]
    any_adapter = _check_slots(host_slots, num_slots)
    if not (tiles if tiles is not None else device.type != "cpu"):
        return AdapterSegments(num_rows, any_adapter, host_slots.contiguous(), table=table)
    rows_per_tile = SMALL_TILE if fixed_order else tile_rows(num_rows)
    bound = None
    if max_segments is not None:
        bound = min(num_rows, num_rows // rows_per_tile + max_segments)
    cut = cut_into_tiles(*find_adapted_runs(host_slots.numpy()), rows_per_tile, bound)
    return AdapterSegments(
        num_rows=num_rows,
        any_adapter=any_adapter,
        row_slot=host_slots.to(device),
        tiles=cut if device.type == "cpu" else cut.moved(lambda tensor: tensor.to(device)),
        fixed_order=fixed_order,
    )


def tile_rows(num_rows: int) -> int:
    """Rows of an adapter's tile in a step of so many."""
    return SMALL_TILE if num_rows <= SMALL_TILES_MAX else 64


SMALL_TILE = 16
SMALL_TILES_MAX = 256


def _check_slots(
    row_slot: Tensor,  # [num_rows] int32, on the CPU
    num_slots: int,
) -> bool:
    """Whether any row has an adapter. Raises KernelInputError for slots that there are not."""
    if row_slot.shape[0] == 0:
        return False
    lowest, highest = (int(bound) for bound in torch.aminmax(row_slot))
    if lowest < BASE_SLOT or highest >= num_slots:
        raise KernelInputError(f"row_slot has slots outside 0..{num_slots - 1} and {BASE_SLOT}")
    return highest != BASE_SLOT


def stack_block_tables(
    block_tables: Sequence[Sequence[int]],
) -> Tensor:  # [num_seqs, max_blocks] int32, on the CPU
    """One row a sequence, 0 behind its last page. Tables that are `array("i")` are copied without
    a look at their elements: 64 tables of 60 pages in 25 us, lists in 190 us."""
    num_seqs = len(block_tables)
    lengths = np.fromiter(map(len, block_tables), np.int64, num_seqs)
    pages = b"".join(t if isinstance(t, array) else array("i", t) for t in block_tables)
    stacked = np.zeros((num_seqs, lengths.max(initial=0)), np.int32)
    stacked[np.arange(stacked.shape[1]) < lengths[:, None]] = np.frombuffer(pages, np.intc)
    return torch.from_numpy(stacked)


DECODE_PARTS = 64
"""Into how many parts the contexts of decode rows are cut in all: with 8 KV heads 512 programs,
about four for each multiprocessor of a Hopper GPU."""


def build_attention_layout(
    query_lens: Sequence[int] | npt.NDArray[np.int64],
    context_lens: Sequence[int] | npt.NDArray[np.int64],
    block_tables: Sequence[Sequence[int]] | Tensor,
    device: torch.device | str,
    *,
    tiles: bool | None = None,
    parts: int = DECODE_PARTS,
    fixed_tile: int | None = None,
) -> AttentionLayout:
    """The layout of one step: sequence i runs its last `query_lens[i]` tokens of `context_lens[i]`
    (this step's included), whose KV blocks lie in the arena pages `block_tables[i]` (a tensor of
    them comes from `stack_block_tables`).

    `tiles` asks for the CUDA form on any device (tests do), `parts` is what it cuts the contexts of
    decode rows into (`cut_contexts`), `fixed_tile` see `tiled_attention_layout`.
    Raises KernelInputError unless `1 <= query_len <= context_len` for every sequence and the three
    are of one length.
    """
    if not (len(query_lens) == len(context_lens) == len(block_tables)):
        raise KernelInputError("query_lens, context_lens and block_tables differ in length")
    query = np.asarray(query_lens, np.int64)
    context = np.asarray(context_lens, np.int64)
    if not ((query >= 1) & (query <= context)).all():
        raise KernelInputError("every sequence needs 1 <= query_len <= context_len")
    table = block_tables if isinstance(block_tables, Tensor) else stack_block_tables(block_tables)
    device = torch.device(device)
    if tiles if tiles is not None else device.type != "cpu":
        num_blocks = np.full(len(query), table.shape[1])
        flat = table.cpu().numpy().reshape(-1)
        layout = tiled_attention_layout(
            query, context, flat, num_blocks, parts=parts, fixed_tile=fixed_tile
        )
        return layout.moved(lambda tensor: tensor.to(device))
    starts = np.zeros(len(query) + 1, np.int64)
    query.cumsum(out=starts[1:])
    return AttentionLayout(
        query_start=torch.from_numpy(starts.astype(np.int32)).to(device),
        context_len=torch.from_numpy(context.astype(np.int32)).to(device),
        block_table=table.to(device),
        max_query_len=int(query.max(initial=0)),
        max_context_len=int(context.max(initial=0)),
        num_rows=int(starts[-1]),
    )


PREFILL_TILE_TOKENS = 16
NO_TILES = RowTiles(torch.empty(4, 0, dtype=torch.int32), PREFILL_TILE_TOKENS)


def tiled_attention_layout(
    query: npt.NDArray[np.int64],  # [num_seqs]
    context: npt.NDArray[np.int64],  # [num_seqs], 0 for a row that only fills a bucket
    block_table: npt.NDArray[np.int32],  # [num_blocks], sequence after sequence
    num_blocks: npt.NDArray[np.int64],  # [num_seqs], of each
    *,
    parts: int = DECODE_PARTS,
    room: int | None = None,
    tile_room: int | None = None,
    fixed_tile: int | None = None,
) -> AttentionLayout:
    """The CUDA form of `build_attention_layout`, on the host; `room` is for how many parts,
    `tile_room` for how many tiles of queries, None for those there are. A sequence without queries
    only fills a bucket.

    `fixed_tile`: a row's sums are to be in an order that the step does not change, and the same
    whether it is the only one of its sequence or among others: contexts are not cut, and a tile of
    queries is as high as the heads of one query alone are in the kernel. So many queries fit it
    (`fixed_tile_queries`)."""
    starts = np.zeros(len(query) + 1, np.int64)
    query.cumsum(out=starts[1:])
    decode, prefill = np.flatnonzero(query == 1), np.flatnonzero(query > 1)
    tiles = NO_TILES
    if len(prefill) or tile_room is not None:
        size = fixed_tile or PREFILL_TILE_TOKENS
        tiles = cut_into_tiles(starts[prefill], query[prefill], prefill, size, tile_room)
    return AttentionLayout(
        query_start=torch.from_numpy(starts.astype(np.int32)),
        context_len=torch.from_numpy(context.astype(np.int32)),
        block_table=torch.from_numpy(block_table),
        max_query_len=int(query.max(initial=0)),
        max_context_len=int(context.max(initial=0)),
        num_rows=int(starts[-1]),
        block_start=torch.from_numpy((num_blocks.cumsum() - num_blocks).astype(np.int32)),
        decode=cut_contexts(decode, context[decode], 1 if fixed_tile else parts, room),
        prefill=tiles,
        fixed_order=fixed_tile is not None,
    )


def fixed_tile_queries(heads: int, kv_heads: int) -> int:
    """See `tiled_attention_layout`: queries are padded to SMALL_TILE rows, a row a head of those
    that share KV."""
    return max(1, SMALL_TILE // (heads // kv_heads))
