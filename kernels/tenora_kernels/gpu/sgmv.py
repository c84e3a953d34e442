"""sgmv in Triton: a shrink and an expand over tiles of rows that share an adapter.

The shrink is split over the input features into partial sums of their own (no atomics), which the
expand adds up in a fixed order, so results are the same from run to run. Into how many follows from
the number of tiles there are, which is read on the device: a captured launch, whose grid is that of
the most tiles there can be, is split as finely as the step at hand wants it. Ranks are read there
too: a program loops over its adapter's rank rows and no others."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu.launch import column_blocks, module_table, power_of_two
from tenora_kernels.gpu.tuning import SgmvTuning, has_early_launch, tuning_for
from tenora_kernels.segments import AdapterSegments, AdapterTable

SPLITS_MAX = 16


@triton.jit
def _parts_of(count, SLICES: tl.constexpr, PROGRAMS: tl.constexpr, SPLITS: tl.constexpr):
    """Into how many parts the features are cut for so many tiles."""
    return tl.minimum(SPLITS, tl.maximum(1, PROGRAMS // (tl.maximum(count, 1) * SLICES)))


@triton.jit(do_not_specialize=["layer"])
def _shrink(
    x, pool, partial, granule_offset, rank, a_offset, scale, slice_module,
    tile_start, tile_length, tile_slot, tile_count,
    layer, x_stride,
    granule_slot_stride, granule_layer_stride, module_slot_stride, module_layer_stride,
    IN_FEATURES: tl.constexpr, SLICES: tl.constexpr, PROGRAMS: tl.constexpr, SPLITS: tl.constexpr,
    MAX_RANK: tl.constexpr, RANK_ROOM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_K: tl.constexpr,
    ALIGNMENT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """partial[unit, row of the tile, r] = scale * x[row, part of K] . A[r, part of K], a unit being
    a slice of a part of a tile. What programs are left over share the ranks."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    count = tl.load(tile_count)
    splits = _parts_of(count, SLICES, PROGRAMS, SPLITS)
    units = tl.maximum(count, 1) * SLICES * splits
    rank_parts = tl.minimum(RANK_ROOM // BLOCK_RANK, tl.maximum(1, PROGRAMS // units))
    unit = tl.program_id(0) // rank_parts
    which = unit % SLICES
    split = unit // SLICES % splits
    tile = unit // SLICES // splits
    if tile >= count:
        return
    # Loads that do not need each other stand together: what a program waits for is their latency.
    slot = tl.load(tile_slot + tile).to(tl.int64)
    first_row = tl.load(tile_start + tile)
    length = tl.load(tile_length + tile)
    module = tl.load(slice_module + which)
    entry = slot * module_slot_stride + layer * module_layer_stride + module
    rank_here = tl.load(rank + entry)
    a_base = tl.load(a_offset + entry)
    factor = tl.load(scale + entry)
    within = tl.arange(0, BLOCK_M)
    row_real = within < length
    rows = (first_row + within).to(tl.int64)
    granule = granule_offset + slot * granule_slot_stride + layer * granule_layer_stride
    place = (unit.to(tl.int64) * BLOCK_M + within) * RANK_ROOM
    K_BLOCKS: tl.constexpr = (IN_FEATURES + BLOCK_K - 1) // BLOCK_K
    blocks_here = tl.cdiv(K_BLOCKS, splits)
    start = split * blocks_here * BLOCK_K
    stop = tl.minimum(IN_FEATURES, start + blocks_here * BLOCK_K)
    part = tl.program_id(0) % rank_parts
    for first_rank in range(part * BLOCK_RANK, rank_here, rank_parts * BLOCK_RANK):
        ranks = first_rank + tl.arange(0, BLOCK_RANK)
        rank_real = ranks < rank_here
        a_start = tl.load(granule + ranks, mask=ranks < MAX_RANK, other=0) + a_base
        a_start = tl.multiple_of(a_start, ALIGNMENT)
        total = tl.zeros((BLOCK_M, BLOCK_RANK), dtype=tl.float32)
        for k in range(start, stop, BLOCK_K):
            features = k + tl.arange(0, BLOCK_K)
            real = features < IN_FEATURES
            x_part = tl.load(
                x + rows[:, None] * x_stride + features[None, :],
                mask=row_real[:, None] & real[None, :], other=0.0,
            )  # fmt: skip
            a_part = tl.load(
                pool + a_start[None, :] + features[:, None],
                mask=rank_real[None, :] & real[:, None], other=0.0,
            )  # fmt: skip
            total = tl.dot(x_part, a_part, total, input_precision="ieee")
        tl.store(
            partial + place[:, None] + ranks[None, :],
            total * factor, mask=row_real[:, None] & rank_real[None, :],
        )  # fmt: skip


@triton.jit
def _hidden(partial, place, split_stride, splits, ranks, mask):
    """The shrink's result for some ranks, its parts added in order, float32."""
    total = tl.load(partial + place[:, None] + ranks[None, :], mask=mask, other=0.0)
    for split in tl.range(1, splits, loop_unroll_factor=4):
        part = partial + split * split_stride + place[:, None] + ranks[None, :]
        total += tl.load(part, mask=mask, other=0.0)
    return total


@triton.jit
def _add_product(total, hidden, weight):
    """total + hidden . weight. A 16-bit weight meets hidden as a sum of two 16-bit numbers, which
    keeps 16 bits of bfloat16's mantissa where one number would keep 8."""
    kind = weight.dtype
    if kind == tl.float32:
        total = tl.dot(hidden, weight, total, input_precision="ieee")
    else:
        high = hidden.to(kind)
        low = (hidden - high.to(tl.float32)).to(kind)
        total = tl.dot(high, weight, total)
        total = tl.dot(low, weight, total)
    return total


@triton.jit(do_not_specialize=["layer"])
def _expand(
    y, pool, partial, granule_offset, rank, b_offset, blocks,
    tile_start, tile_length, tile_slot, tile_count,
    layer, y_stride,
    granule_slot_stride, granule_layer_stride, module_slot_stride, module_layer_stride,
    SLICES: tl.constexpr, PROGRAMS: tl.constexpr, SPLITS: tl.constexpr,
    MAX_RANK: tl.constexpr, RANK_ROOM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_OUT: tl.constexpr,
    ALIGNMENT: tl.constexpr, EARLY: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """y[row, slice columns] += (sum of partials)[row, slice, :rank] . B^T[:rank, columns]

    A program takes one block of columns of one tile after another, so that a captured launch costs
    what the tiles of the step cost, and not what the most tiles would."""
    count = tl.load(tile_count)
    for unit in range(tl.program_id(0), count * BLOCKS, tl.num_programs(0)):
        tile = unit // BLOCKS
        slot = tl.load(tile_slot + tile).to(tl.int64)
        first_row = tl.load(tile_start + tile)
        length = tl.load(tile_length + tile)
        block = blocks + 5 * (unit % BLOCKS)
        which = tl.load(block)
        module = tl.load(block + 1)
        # Blocks start at multiples of BLOCK_OUT within their slice.
        columns = tl.multiple_of(tl.load(block + 2), BLOCK_OUT) + tl.arange(0, BLOCK_OUT)
        slice_start = tl.multiple_of(tl.load(block + 3), ALIGNMENT)
        column_real = columns < tl.multiple_of(tl.load(block + 4), ALIGNMENT)
        entry = slot * module_slot_stride + layer * module_layer_stride + module
        granule = granule_offset + slot * granule_slot_stride + layer * granule_layer_stride
        ranks = tl.arange(0, BLOCK_RANK)
        rank_here = tl.load(rank + entry)
        b_base = tl.load(b_offset + entry)
        b_start = tl.load(granule + ranks, mask=ranks < MAX_RANK, other=0) + b_base
        if rank_here > 0:
            rank_real = ranks < rank_here
            b_start = tl.multiple_of(b_start, ALIGNMENT)
            weight = tl.load(
                pool + b_start[:, None] + columns[None, :],
                mask=rank_real[:, None] & column_real[None, :], other=0.0,
            )  # fmt: skip
            within = tl.arange(0, BLOCK_M)
            row_real = within < length
            rows = (first_row + within).to(tl.int64)
            target = y + rows[:, None] * y_stride + (slice_start + columns)[None, :]
            target_real = row_real[:, None] & column_real[None, :]
            before = tl.load(target, mask=target_real, other=0.0)
            if EARLY:  # what the shrink wrote is there from here on; the above needs none of it
                tl.extra.cuda.gdc_wait()
            splits = _parts_of(count, SLICES, PROGRAMS, SPLITS)
            split_stride = SLICES * BLOCK_M * RANK_ROOM
            place = (tile * splits * SLICES + which).to(tl.int64)
            place = (place * BLOCK_M + within) * RANK_ROOM
            real = row_real[:, None] & rank_real[None, :]
            hidden = _hidden(partial, place, split_stride, splits, ranks, real)
            total = tl.zeros((BLOCK_M, BLOCK_OUT), dtype=tl.float32)
            total = _add_product(total, hidden, weight)
            for first_rank in range(BLOCK_RANK, rank_here, BLOCK_RANK):
                more = first_rank + tl.arange(0, BLOCK_RANK)
                more_real = more < rank_here
                more_start = tl.load(granule + more, mask=more_real, other=0) + b_base
                more_start = tl.multiple_of(more_start, ALIGNMENT)
                weight = tl.load(
                    pool + more_start[:, None] + columns[None, :],
                    mask=more_real[:, None] & column_real[None, :], other=0.0,
                )  # fmt: skip
                real = row_real[:, None] & more_real[None, :]
                hidden = _hidden(partial, place, split_stride, splits, more, real)
                total = _add_product(total, hidden, weight)
            total += before.to(tl.float32)
            tl.store(target, total.to(y.dtype.element_ty), mask=target_real)


def sgmv(
    y: Tensor,
    x: Tensor,
    pool: Tensor,
    table: AdapterTable,
    segments: AdapterSegments,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
    tuning: SgmvTuning | None = None,  # None: the device's own
) -> None:
    """See tenora_kernels.sgmv."""
    if pool.dtype == torch.int8:
        raise KernelInputError("int8 adapter pages need the CPU; set adapter_dtype to auto")
    tiles = segments.tiles
    if tiles is None:
        raise KernelInputError("segments have no tiles: build them on the device that runs them")
    if tuning is None:
        tuned = tuning_for(x.device)
        tuning = tuned.sgmv_decode if tiles.rows_per_tile <= 16 else tuned.sgmv_prefill
    if tuning.early_expand and not has_early_launch(x.device):
        raise KernelInputError("early_expand needs compute capability 9.0 (Hopper) or later")
    in_features, slices = x.shape[1], len(modules)
    max_rank = table.granule_offset.shape[2]
    room = triton.cdiv(max_rank, tuning.block_rank) * tuning.block_rank
    block_k = tuning.block_features // (1 if x.element_size() == 2 else 4)
    block_k = min(block_k, power_of_two(in_features, 16))
    splits = 1 if segments.fixed_order else min(SPLITS_MAX, triton.cdiv(in_features, block_k))
    # However many tiles there are: they are cut no further once there are so many programs.
    least = tiles.room * slices
    most = max(tuning.programs, least)
    block_m = max(16, tiles.rows_per_tile)
    units = min(most, least * splits)
    partial = torch.empty(units, block_m, room, dtype=torch.float32, device=x.device)
    shared = (tiles.start, tiles.length, tiles.owner, tiles.count, layer)
    strides = (*table.granule_offset.stride()[:2], *table.rank.stride()[:2])
    cut = {
        "SLICES": slices, "PROGRAMS": tuning.programs, "SPLITS": splits, "MAX_RANK": max_rank,
        "RANK_ROOM": room, "BLOCK_M": block_m, "BLOCK_RANK": tuning.block_rank,
        "ALIGNMENT": table.alignment, "EARLY": tuning.early_expand,
    }  # fmt: skip
    _shrink[(min(most, units * (room // tuning.block_rank)),)](
        x, pool, partial, table.granule_offset, table.rank, table.a_offset, table.scale,
        module_table(tuple(modules), x.device),
        *shared, x.stride(0), *strides, IN_FEATURES=in_features, BLOCK_K=block_k, **cut,
        num_warps=tuning.shrink_warps, num_stages=tuning.shrink_stages,
    )  # fmt: skip
    block_out = min(tuning.block_columns, power_of_two(max(widths), 16))
    blocks = column_blocks(modules, widths, block_out, x.device)
    grid = (min(tiles.room * blocks.shape[0], tuning.expand_programs),)
    _expand[grid](
        y, pool, partial, table.granule_offset, table.rank, table.b_offset, blocks,
        *shared, y.stride(0), *strides, BLOCK_OUT=block_out, BLOCKS=blocks.shape[0], **cut,
        num_warps=tuning.expand_warps, **_EARLY_LAUNCH if tuning.early_expand else {},
    )  # fmt: skip


# Programmatic dependent launch (PTX griddepcontrol), Hopper and later.
_EARLY_LAUNCH = {"launch_pdl": True}
