"""sgmv in Triton: a shrink and an expand over tiles of rows that share an adapter.

The shrink is split over the input features into partial sums of their own (no atomics), which the
expand adds up in a fixed order, so results are the same from run to run. The grid is that of the
most tiles there can be; programs past the count on the device return at once (CUDA graphs)."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu.launch import dot_precision, power_of_two, slice_table
from tenora_kernels.segments import AdapterSegments, AdapterTable

BLOCK_R = 16
BLOCK_N = 128
# Decode needs programs more than long sums: aim at about two per multiprocessor of an H100.
PROGRAMS_WANTED = 256


@triton.jit(do_not_specialize=["layer", "num_rows"])
def _shrink(
    x, pool, partial, granule_offset, rank, a_offset, scale, slices,
    tile_start, tile_length, tile_slot, tile_count,
    layer, num_rows, x_stride, in_features,
    granule_slot_stride, granule_layer_stride, module_slot_stride, module_layer_stride,
    SLICES: tl.constexpr, RANK_ROOM: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """partial[split, row, slice, r] = scale * x[row, part of K] . A[r, part of K]"""
    tile = tl.program_id(0)
    which = tl.program_id(1) % SLICES
    split = tl.program_id(1) // SLICES
    first_rank = tl.program_id(2) * BLOCK_RANK
    if tile >= tl.load(tile_count):
        return
    slot = tl.load(tile_slot + tile).to(tl.int64)
    module = tl.load(slices + 3 * which)
    entry = slot * module_slot_stride + layer * module_layer_stride + module
    rank_here = tl.load(rank + entry)
    if first_rank >= rank_here:
        return
    rows = tl.load(tile_start + tile) + tl.arange(0, BLOCK_M)
    row_real = tl.arange(0, BLOCK_M) < tl.load(tile_length + tile)
    ranks = first_rank + tl.arange(0, BLOCK_RANK)
    rank_real = ranks < rank_here
    granule = granule_offset + slot * granule_slot_stride + layer * granule_layer_stride
    a_start = tl.load(granule + ranks, mask=rank_real, other=0) + tl.load(a_offset + entry)
    total = tl.zeros((BLOCK_M, BLOCK_RANK), dtype=tl.float32)
    for k in range(split * BLOCK_K, in_features, SPLITS * BLOCK_K):
        features = k + tl.arange(0, BLOCK_K)
        real = features < in_features
        x_part = tl.load(
            x + rows[:, None].to(tl.int64) * x_stride + features[None, :],
            mask=row_real[:, None] & real[None, :], other=0.0,
        )  # fmt: skip
        a_part = tl.load(
            pool + a_start[None, :] + features[:, None],
            mask=rank_real[None, :] & real[:, None], other=0.0,
        )  # fmt: skip
        total = tl.dot(x_part, a_part, total, input_precision=PRECISION)
    total *= tl.load(scale + entry)
    place = (split * num_rows + rows[:, None].to(tl.int64)) * SLICES + which
    tl.store(
        partial + place * RANK_ROOM + ranks[None, :],
        total, mask=row_real[:, None] & rank_real[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=["layer", "num_rows"])
def _expand(
    y, pool, partial, granule_offset, rank, b_offset, slices,
    tile_start, tile_length, tile_slot, tile_count,
    layer, num_rows, y_stride,
    granule_slot_stride, granule_layer_stride, module_slot_stride, module_layer_stride,
    SLICES: tl.constexpr, RANK_ROOM: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_OUT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """y[row, slice columns] += (sum of partials)[row, slice, :rank] . B^T[:rank, columns]"""
    tile = tl.program_id(0)
    which = tl.program_id(1)
    if tile >= tl.load(tile_count):
        return
    width = tl.load(slices + 3 * which + 2)
    first_column = tl.program_id(2) * BLOCK_OUT
    if first_column >= width:
        return
    slot = tl.load(tile_slot + tile).to(tl.int64)
    module = tl.load(slices + 3 * which)
    entry = slot * module_slot_stride + layer * module_layer_stride + module
    rank_here = tl.load(rank + entry)
    if rank_here == 0:
        return
    rows = tl.load(tile_start + tile) + tl.arange(0, BLOCK_M)
    row_real = tl.arange(0, BLOCK_M) < tl.load(tile_length + tile)
    columns = first_column + tl.arange(0, BLOCK_OUT)
    column_real = columns < width
    granule = granule_offset + slot * granule_slot_stride + layer * granule_layer_stride
    b_base = tl.load(b_offset + entry)
    total = tl.zeros((BLOCK_M, BLOCK_OUT), dtype=tl.float32)
    for first_rank in range(0, rank_here, BLOCK_RANK):
        ranks = first_rank + tl.arange(0, BLOCK_RANK)
        rank_real = ranks < rank_here
        hidden = tl.zeros((BLOCK_M, BLOCK_RANK), dtype=tl.float32)
        for split in tl.static_range(SPLITS):
            place = (split * num_rows + rows[:, None].to(tl.int64)) * SLICES + which
            hidden += tl.load(
                partial + place * RANK_ROOM + ranks[None, :],
                mask=row_real[:, None] & rank_real[None, :], other=0.0,
            )  # fmt: skip
        b_start = tl.load(granule + ranks, mask=rank_real, other=0) + b_base
        weight = tl.load(
            pool + b_start[:, None] + columns[None, :],
            mask=rank_real[:, None] & column_real[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(hidden, weight.to(tl.float32), total, input_precision=PRECISION)
    target = y + rows[:, None].to(tl.int64) * y_stride + tl.load(slices + 3 * which + 1)
    target += columns[None, :]
    mask = row_real[:, None] & column_real[None, :]
    total += tl.load(target, mask=mask, other=0.0).to(tl.float32)
    tl.store(target, total.to(y.dtype.element_ty), mask=mask)


def sgmv(
    y: Tensor,
    x: Tensor,
    pool: Tensor,
    table: AdapterTable,
    segments: AdapterSegments,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> None:
    """See tenora_kernels.sgmv."""
    tiles = segments.tiles
    if tiles is None:
        raise KernelInputError("segments have no tiles: build them on the device that runs them")
    num_rows, in_features = x.shape
    grid_tiles, max_rank = tiles.start.shape[0], table.granule_offset.shape[2]
    rank_blocks = triton.cdiv(max_rank, BLOCK_R)
    block_k = min(128, power_of_two(in_features, 16))
    splits = choose_splits(grid_tiles * len(modules), triton.cdiv(in_features, block_k))
    room = rank_blocks * BLOCK_R
    partial = torch.empty(
        splits, num_rows, len(modules), room, dtype=torch.float32, device=x.device
    )
    slices = slice_table(modules, widths, x.device)
    shared = (tiles.start, tiles.length, tiles.owner, tiles.count, layer, num_rows)
    strides = (*table.granule_offset.stride()[:2], *table.rank.stride()[:2])
    block_m = max(16, tiles.rows_per_tile)
    precision = dot_precision(x.dtype)
    _shrink[(grid_tiles, len(modules) * splits, rank_blocks)](
        x, pool, partial, table.granule_offset, table.rank, table.a_offset, table.scale, slices,
        *shared, x.stride(0), in_features, *strides,
        SLICES=len(modules), RANK_ROOM=room, SPLITS=splits,
        BLOCK_M=block_m, BLOCK_RANK=BLOCK_R, BLOCK_K=block_k, PRECISION=precision, num_warps=4,
    )  # fmt: skip
    block_n = min(BLOCK_N, power_of_two(max(widths), 16))
    _expand[(grid_tiles, len(modules), triton.cdiv(max(widths), block_n))](
        y, pool, partial, table.granule_offset, table.rank, table.b_offset, slices,
        *shared, y.stride(0), *strides,
        SLICES=len(modules), RANK_ROOM=room, SPLITS=splits,
        BLOCK_M=block_m, BLOCK_RANK=BLOCK_R, BLOCK_OUT=block_n, PRECISION=precision, num_warps=4,
    )  # fmt: skip


def choose_splits(programs: int, k_blocks: int) -> int:
    """Into how many partial sums the shrink is cut: a power of two from 1 to 8, at most one per
    block of features, as many as bring the launch to about PROGRAMS_WANTED programs."""
    splits = 1
    while splits < 8 and 2 * splits <= k_blocks and programs * splits < PROGRAMS_WANTED:
        splits *= 2
    return splits
