"""paged_attention in Triton: one flash kernel over tiles of query rows, launched once for decode
(split over the context, then combined: Flash-Decoding, Dao et al. 2023) and once for prefill chunks
(not split). Splits come from static sizes, contexts and counts are read on the device, so a
captured launch stays valid."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu.launch import cut_for, power_of_two
from tenora_kernels.gpu.tuning import AttentionTuning, tuning_for
from tenora_kernels.segments import AttentionLayout, KVLayout, RowTiles

SPLITS_MAX = 32
TOKENS_PER_SPLIT = 256
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["layer", "num_rows", "blocks_stride"])
def _attend(
    q, pool, out, partial, partial_max, partial_sum,
    query_start, context_len, block_table,
    tile_start, tile_length, tile_sequence, tile_count,
    layer, num_rows, blocks_stride, q_row_stride, q_head_stride, page_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_ROOM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_CTX: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """One tile of a sequence's query rows, all query heads of one KV head, one part of the
    context. Row m of the tile is query m // GROUP, head m % GROUP."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    count = tl.load(tile_count)
    sequence = tl.load(tile_sequence + tile)
    first_row = tl.load(tile_start + tile)
    length = tl.load(tile_length + tile)
    if tile >= count:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
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

    # Exponents to base 2: one instruction.
    scale *= LOG2_E
    # A constant times the layer keeps what is known of the alignment, and with it wide loads.
    TOKEN: tl.constexpr = KV_HEADS * HEAD_DIM
    HALF_LAYER: tl.constexpr = BLOCK_TOKENS * TOKEN
    keys_start = layer * (2 * HALF_LAYER) + kv_head * HEAD_DIM
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
        line = page * page_stride + (keys_start + (tokens % BLOCK_TOKENS) * TOKEN)
        keys = tl.load(
            pool + line[None, :] + dims[:, None], mask=real[None, :] & dim_real[:, None], other=0.0
        ).to(queries.dtype)
        scores = tl.dot(queries, keys, input_precision="ieee") * scale
        visible = (tokens[None, :] <= first_position + query[:, None]) & real[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        # A row that has seen nothing yet keeps -inf; 0 in its place avoids inf - inf.
        anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - anchor[:, None])
        keep = tl.exp2(best - anchor)
        values = tl.load(
            pool + line[:, None] + (HALF_LAYER + dims)[None, :],
            mask=real[:, None] & dim_real[None, :], other=0.0,
        ).to(queries.dtype)  # fmt: skip
        weight_sum = weight_sum * keep + tl.sum(weights, axis=1)
        mixed = mixed * keep[:, None]
        mixed = tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")
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
    keep = tl.exp2(best - tl.max(best, axis=0))
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
    tuning: AttentionTuning | None = None,  # None: the device's own
) -> None:
    """See tenora_kernels.paged_attention."""
    if layout.decode is None or layout.prefill is None:
        raise KernelInputError("the layout has no tiles: use build_attention_layout")
    tuned = tuning_for(q.device)
    if layout.decode.start.shape[0]:
        _launch(
            q, pool, kv, layer, layout, scale, out, layout.decode, tuning or tuned.attention_decode
        )
    if layout.prefill.start.shape[0]:
        _launch(
            q, pool, kv, layer, layout, scale, out, layout.prefill,
            tuning or tuned.attention_prefill,
        )  # fmt: skip


def _launch(
    q: Tensor,
    pool: Tensor,
    kv: KVLayout,
    layer: int,
    layout: AttentionLayout,
    scale: float,
    out: Tensor,
    tiles: RowTiles,
    tuning: AttentionTuning,
) -> None:
    num_rows, heads, head_dim = q.shape
    room = power_of_two(head_dim, 16)
    grid_tiles = tiles.start.shape[0]
    splits = 1
    if tiles.rows_per_tile == 1:
        most = min(SPLITS_MAX, triton.cdiv(layout.max_context_len, TOKENS_PER_SPLIT))
        splits = cut_for(grid_tiles * kv.kv_heads, tuning.programs, most)
    part_rows = num_rows if splits > 1 else 0
    partial = torch.empty(splits, part_rows, heads, head_dim, device=q.device)
    partial_max = torch.empty(splits, part_rows, heads, device=q.device)
    partial_sum = torch.empty_like(partial_max)
    exact = q.element_size() == 4  # products without tensor cores: small blocks, or no end to them
    block_ctx = tuning.block_context // (4 if exact else 1)
    warps = 8 if exact else tuning.warps
    block_m = power_of_two(tiles.rows_per_tile * (heads // kv.kv_heads), 16)
    _attend[(grid_tiles, kv.kv_heads, splits)](
        q, pool, out, partial, partial_max, partial_sum,
        layout.query_start, layout.context_len, layout.block_table,
        tiles.start, tiles.length, tiles.owner, tiles.count,
        layer, num_rows, layout.block_table.stride(0), q.stride(0), q.stride(1),
        pool.stride(0), scale,
        HEADS=heads, KV_HEADS=kv.kv_heads, HEAD_DIM=head_dim, HEAD_ROOM=room,
        BLOCK_TOKENS=kv.block_tokens, BLOCK_M=block_m,
        BLOCK_CTX=block_ctx, SPLITS=splits, num_warps=warps, num_stages=tuning.stages,
    )  # fmt: skip
    if splits > 1:
        _combine[(grid_tiles, heads)](
            out, partial, partial_max, partial_sum, tiles.start, tiles.count, num_rows,
            HEADS=heads, HEAD_DIM=head_dim, HEAD_ROOM=room, SPLITS=splits, num_warps=4,
        )  # fmt: skip
