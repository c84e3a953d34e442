"""paged_attention in Triton: one flash kernel over tiles of query rows, launched once for decode
(split over the context, then combined) and once for prefill chunks (not split)."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu.launch import dot_precision, power_of_two
from tenora_kernels.segments import AttentionLayout, KVLayout, RowTiles

BLOCK_N = 64
SPLITS_MAX = 32
TOKENS_PER_SPLIT = 256
PROGRAMS_WANTED = 264


@triton.jit(do_not_specialize=["layer_offset", "num_rows", "blocks_stride"])
def _attend(
    q, pool, out, partial, partial_max, partial_sum,
    query_start, context_len, block_table,
    tile_start, tile_length, tile_sequence, tile_count,
    layer_offset, num_rows, blocks_stride, q_row_stride, q_head_stride, page_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_ROOM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE_TOKENS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_CTX: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of a sequence's query rows, all query heads of one KV head, one part of the
    context. Row m of the tile is query m // GROUP, head m % GROUP."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if tile >= tl.load(tile_count):
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    sequence = tl.load(tile_sequence + tile)
    first_row = tl.load(tile_start + tile)
    length = tl.load(tile_length + tile)
    # The tile's first query stands this far into the sequence.
    rows_after = tl.load(query_start + sequence + 1) - first_row
    first_position = tl.load(context_len + sequence) - rows_after

    m = tl.arange(0, BLOCK_M)
    query = m // GROUP
    head = kv_head * GROUP + m % GROUP
    query_real = query < length
    dims = tl.arange(0, HEAD_ROOM)
    dim_real = dims < HEAD_DIM
    row = (first_row + query).to(tl.int64)
    queries = tl.load(
        q + row[:, None] * q_row_stride + head[:, None] * q_head_stride + dims[None, :],
        mask=query_real[:, None] & dim_real[None, :], other=0.0,
    )  # fmt: skip

    seen = first_position + length
    per_split = tl.cdiv(tl.cdiv(seen, BLOCK_CTX), SPLITS) * BLOCK_CTX
    start = split * per_split
    stop = tl.minimum(seen, start + per_split)
    best = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_M, HEAD_ROOM), dtype=tl.float32)
    for first in range(start, stop, BLOCK_CTX):
        tokens = first + tl.arange(0, BLOCK_CTX)
        real = tokens < stop
        page = tl.load(
            block_table + sequence.to(tl.int64) * blocks_stride + tokens // BLOCK_TOKENS,
            mask=real, other=0,
        ).to(tl.int64)  # fmt: skip
        line = page * page_stride + layer_offset
        line += ((tokens % BLOCK_TOKENS) * KV_HEADS + kv_head) * HEAD_DIM
        keys = tl.load(
            pool + line[None, :] + dims[:, None], mask=real[None, :] & dim_real[:, None], other=0.0
        )
        scores = tl.dot(queries, keys, input_precision=PRECISION) * scale
        visible = (tokens[None, :] <= first_position + query[:, None]) & real[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet keeps -inf; 0 in its place avoids inf - inf.
        anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - anchor[:, None])
        keep = tl.exp(best - anchor)
        values = tl.load(
            pool + line[:, None] + BLOCK_TOKENS * KV_HEADS * HEAD_DIM + dims[None, :],
            mask=real[:, None] & dim_real[None, :], other=0.0,
        )  # fmt: skip
        weight_sum = weight_sum * keep + tl.sum(weights, axis=1)
        mixed = mixed * keep[:, None]
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision=PRECISION)
        best = new_best
    mask = query_real[:, None] & dim_real[None, :]
    place = row * HEADS + head
    if SPLITS == 1:
        mixed = mixed / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
        tl.store(
            out + place[:, None] * HEAD_DIM + dims[None, :],
            mixed.to(out.dtype.element_ty), mask=mask,
        )  # fmt: skip
    else:
        place += split.to(tl.int64) * num_rows * HEADS
        tl.store(partial + place[:, None] * HEAD_DIM + dims[None, :], mixed, mask=mask)
        tl.store(partial_max + place, best, mask=query_real)
        tl.store(partial_sum + place, weight_sum, mask=query_real)


@triton.jit(do_not_specialize=["num_rows"])
def _combine(
    out, partial, partial_max, partial_sum, tile_start, tile_count, num_rows,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_ROOM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """out[row, head] from the parts of its context."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    if tile >= tl.load(tile_count):
        return
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, HEAD_ROOM)
    dim_real = dims < HEAD_DIM
    row = tl.load(tile_start + tile).to(tl.int64)
    place = (splits.to(tl.int64) * num_rows + row) * HEADS + head
    best = tl.load(partial_max + place)
    keep = tl.exp(best - tl.max(best, axis=0))
    parts = tl.load(
        partial + place[:, None] * HEAD_DIM + dims[None, :], mask=dim_real[None, :], other=0.0
    )
    mixed = tl.sum(parts * keep[:, None], axis=0)
    mixed = mixed / tl.sum(tl.load(partial_sum + place) * keep, axis=0)
    target = out + (row * HEADS + head) * HEAD_DIM + dims
    tl.store(target, mixed.to(out.dtype.element_ty), mask=dim_real)


def paged_attention(
    q: Tensor,
    pool: Tensor,
    kv: KVLayout,
    layer: int,
    layout: AttentionLayout,
    scale: float,
    out: Tensor,
) -> None:
    """See tenora_kernels.paged_attention."""
    if layout.decode is None or layout.prefill is None:
        raise KernelInputError("the layout has no tiles: use build_attention_layout")
    if layout.decode.start.shape[0]:
        programs = layout.decode.start.shape[0] * kv.kv_heads
        splits = choose_splits(programs, layout.max_context_len)
        _launch(q, pool, kv, layer, layout, scale, out, layout.decode, splits)
    if layout.prefill.start.shape[0]:
        _launch(q, pool, kv, layer, layout, scale, out, layout.prefill, 1)


def choose_splits(programs: int, max_context_len: int) -> int:
    """Into how many parts a decode context is cut: a power of two up to SPLITS_MAX, none shorter
    than TOKENS_PER_SPLIT, as many as bring the launch to PROGRAMS_WANTED programs."""
    splits = 1
    while (
        splits < SPLITS_MAX
        and programs * splits < PROGRAMS_WANTED
        and max_context_len > splits * TOKENS_PER_SPLIT
    ):
        splits *= 2
    return splits


def _launch(
    q: Tensor,
    pool: Tensor,
    kv: KVLayout,
    layer: int,
    layout: AttentionLayout,
    scale: float,
    out: Tensor,
    tiles: RowTiles,
    splits: int,
) -> None:
    num_rows, heads, head_dim = q.shape
    room = power_of_two(head_dim, 16)
    part_rows = num_rows if splits > 1 else 0
    partial = torch.empty(splits, part_rows, heads, head_dim, device=q.device)
    partial_max = torch.empty(splits, part_rows, heads, device=q.device)
    partial_sum = torch.empty_like(partial_max)
    layer_offset = layer * 2 * kv.block_tokens * kv.kv_heads * head_dim
    block_m = power_of_two(tiles.rows_per_tile * (heads // kv.kv_heads), 16)
    grid_tiles = tiles.start.shape[0]
    _attend[(grid_tiles, kv.kv_heads, splits)](
        q, pool, out, partial, partial_max, partial_sum,
        layout.query_start, layout.context_len, layout.block_table,
        tiles.start, tiles.length, tiles.owner, tiles.count,
        layer_offset, num_rows, layout.block_table.stride(0), q.stride(0), q.stride(1),
        pool.stride(0), scale,
        HEADS=heads, KV_HEADS=kv.kv_heads, HEAD_DIM=head_dim, HEAD_ROOM=room,
        BLOCK_TOKENS=kv.block_tokens, TILE_TOKENS=tiles.rows_per_tile, BLOCK_M=block_m,
        BLOCK_CTX=BLOCK_N, SPLITS=splits, PRECISION=dot_precision(q.dtype), num_warps=4,
    )  # fmt: skip
    if splits > 1:
        _combine[(grid_tiles, heads)](
            out, partial, partial_max, partial_sum, tiles.start, tiles.count, num_rows,
            HEADS=heads, HEAD_DIM=head_dim, HEAD_ROOM=room, SPLITS=splits, num_warps=4,
        )  # fmt: skip
