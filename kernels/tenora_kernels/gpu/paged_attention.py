"""paged_attention in Triton: one flash kernel, launched once for decode, over parts of the contexts
that are then combined (Flash-Decoding, Dao et al. 2023), and once for prefill chunks, over tiles of
query rows. The host cuts contexts into parts of one size whatever row they belong to
(`tenora_kernels.tiles`); parts and their count are read on the device, so a captured launch stays
valid, and no argument that changes from step to step makes another kernel."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu.launch import check_fp8, power_of_two
from tenora_kernels.gpu.tuning import AttentionTuning, tuning_for
from tenora_kernels.segments import AttentionLayout, KVLayout

BLOCK_ROWS = 128
BLOCK_ELEMENTS = 128 * BLOCK_ROWS
"""Of the sums of a prefill program (with 8 warps 64 registers a thread), and of the keys and values
a program holds at once."""

PARTS_AT_ONCE = 16  # that a program of the second kernel adds up in one go
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["layer"])
def _attend(
    q, pool, out, partial, partial_max, partial_sum,
    query_start, context_len, block_table, block_start,
    tile_sequence, tile_first, tile_second, tile_siblings, tile_count,
    layer, q_row_stride, q_head_stride, page_stride, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_ROOM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_CTX: tl.constexpr,
    DECODE: tl.constexpr,
):  # fmt: skip
    """All query heads of one KV head: with DECODE of one query row over context tokens first to
    second, else of `second` query rows from row `first` on over all of their context, as many a
    program as its block has room for. Row m of the block is query m // GROUP, head m % GROUP."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    count = tl.load(tile_count)
    if tile >= count:
        return
    if not DECODE:
        tile = count - 1 - tile  # the last tiles of a prompt have the longest contexts: first
    sequence = tl.load(tile_sequence + tile)
    first = tl.load(tile_first + tile)
    second = tl.load(tile_second + tile)
    blocks = block_table + tl.load(block_start + sequence)
    if DECODE:
        first_row = tl.load(query_start + sequence)
        length = 1
        first_position = second  # the row sees all of its context
        start = first
        stop = second
    else:
        skipped = tl.program_id(2) * QUERIES
        if skipped >= second:
            return
        first_row = first + skipped
        length = tl.minimum(second - skipped, QUERIES)
        # The tile's first query stands this far into the sequence.
        rows_after = tl.load(query_start + sequence + 1) - first_row
        first_position = tl.load(context_len + sequence) - rows_after
        start = 0
        stop = first_position + length

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
    best = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    mixed = tl.zeros((BLOCK_M, HEAD_ROOM), dtype=tl.float32)
    for token in range(start, stop, BLOCK_CTX):
        tokens = token + tl.arange(0, BLOCK_CTX)
        real = tokens < stop
        page = tl.load(blocks + tokens // BLOCK_TOKENS, mask=real, other=0).to(tl.int64)
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
    place = row * HEADS + head
    if DECODE:
        siblings = tl.load(tile_siblings + tile)
        parted = query < tl.minimum(length, siblings - 1)
        kept = tile.to(tl.int64) * HEADS + head
        tl.store(
            partial + kept[:, None] * HEAD_DIM + dims[None, :], mixed,
            mask=parted[:, None] & dim_real[None, :],
        )  # fmt: skip
        tl.store(partial_max + kept, best, mask=parted)
        tl.store(partial_sum + kept, weight_sum, mask=parted)
        query_real = query < 2 - siblings  # alone: nothing is left to be combined
    mask = query_real[:, None] & dim_real[None, :]
    mixed = mixed / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    tl.store(
        out + place[:, None] * HEAD_DIM + dims[None, :], mixed.to(out.dtype.element_ty), mask=mask
    )


@triton.jit
def _combine(
    out, partial, partial_max, partial_sum, query_start,
    part_sequence, part_start, part_siblings, part_count,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_ROOM: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """out[row, heads of one KV head] from the parts of the row's context, by the program of the
    first of them."""
    part = tl.program_id(0)
    kv_head = tl.program_id(1)
    count = tl.load(part_count)
    sequence = tl.load(part_sequence + part)
    start = tl.load(part_start + part)
    siblings = tl.load(part_siblings + part)
    if (part >= count) | (start > 0) | (siblings == 1):
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row = tl.load(query_start + sequence).to(tl.int64)
    dims = tl.arange(0, HEAD_ROOM)
    dim_real = dims < HEAD_DIM
    for member in tl.static_range(GROUP):
        head = kv_head * GROUP + member
        best = float("-inf")
        weight_sum = 0.0
        mixed = tl.zeros((HEAD_ROOM,), dtype=tl.float32)
        for first in range(0, siblings, AT_ONCE):
            others = first + tl.arange(0, AT_ONCE)
            real = others < siblings
            place = (part + others).to(tl.int64) * HEADS + head
            bests = tl.load(partial_max + place, mask=real, other=float("-inf"))
            sums = tl.load(partial_sum + place, mask=real, other=0.0)
            parts = tl.load(
                partial + place[:, None] * HEAD_DIM + dims[None, :],
                mask=real[:, None] & dim_real[None, :], other=0.0,
            )  # fmt: skip
            new_best = tl.maximum(best, tl.max(bests, axis=0))  # of what is seen: a number
            keep = tl.exp2(best - new_best)
            factors = tl.exp2(bests - new_best)
            mixed = mixed * keep + tl.sum(parts * factors[:, None], axis=0)
            weight_sum = weight_sum * keep + tl.sum(sums * factors, axis=0)
            best = new_best
        target = out + (row * HEADS + head) * HEAD_DIM + dims
        tl.store(target, (mixed / weight_sum).to(out.dtype.element_ty), mask=dim_real)


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
    if layout.decode is None or layout.prefill is None or layout.block_start is None:
        raise KernelInputError("the layout has no tiles: use build_attention_layout")
    check_fp8(pool)
    tuned = tuning_for(q.device)
    of_decode = tuned.attention_decode_fp8 if pool.element_size() == 1 else tuned.attention_decode
    shared = (layout.query_start, layout.context_len, layout.block_table, layout.block_start)
    parts, tiles = layout.decode, layout.prefill
    heads, group = q.shape[1], q.shape[1] // kv.kv_heads
    if parts.room:
        partial = torch.empty(parts.room, heads, q.shape[2], device=q.device)
        ends = torch.empty(2, parts.room, heads, device=q.device)
        work = (parts.sequence, parts.start, parts.stop, parts.siblings, parts.count)
        _launch(
            q, pool, kv, layer, scale, (out, partial, ends[0], ends[1]), shared, work,
            (parts.room, kv.kv_heads), power_of_two(group, 16), tuning or of_decode,
            decode=True,
        )  # fmt: skip
        _combine[(parts.room, kv.kv_heads)](
            out, partial, ends[0], ends[1], layout.query_start,
            parts.sequence, parts.start, parts.siblings, parts.count,
            HEADS=heads, KV_HEADS=kv.kv_heads, HEAD_DIM=kv.head_dim,
            HEAD_ROOM=power_of_two(kv.head_dim, 16), AT_ONCE=PARTS_AT_ONCE, num_warps=4,
        )  # fmt: skip
    if tiles.room:
        work = (tiles.owner, tiles.start, tiles.length, tiles.length, tiles.count)
        own = of_decode if layout.fixed_order else tuned.attention_prefill
        block_m = _prefill_rows(tiles.rows_per_tile, group, power_of_two(kv.head_dim, 16))
        grid = (tiles.room, kv.kv_heads, triton.cdiv(tiles.rows_per_tile, block_m // group))
        _launch(
            q, pool, kv, layer, scale, (out, out, out, out), shared, work, grid,
            block_m, tuning or own, decode=False,
        )  # fmt: skip


def _prefill_rows(queries: int, group: int, head_room: int) -> int:
    """Rows of a program: all heads of a tile's queries, or of as many as leave the sums in
    registers; wider blocks spill from groups of 5 on, or ask for more shared memory than
    there is."""
    most = max(min(BLOCK_ROWS, BLOCK_ELEMENTS // head_room), power_of_two(group, 16))
    return min(power_of_two(queries * group, 16), most)


def _launch(
    q: Tensor,
    pool: Tensor,
    kv: KVLayout,
    layer: int,
    scale: float,
    results: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    work: tuple[Tensor, ...],
    grid: tuple[int, ...],
    block_m: int,
    tuning: AttentionTuning,
    *,
    decode: bool,
) -> None:
    exact = q.element_size() == 4  # products without tensor cores: small blocks, or no end to them
    head_room = power_of_two(kv.head_dim, 16)
    context = min(tuning.block_context, BLOCK_ELEMENTS // head_room) // (4 if exact else 1)
    wide = exact or block_m >= BLOCK_ROWS or block_m * head_room >= BLOCK_ELEMENTS
    _attend[grid](
        q, pool, *results, *shared, *work,
        layer, q.stride(0), q.stride(1), pool.stride(0), scale,
        HEADS=q.shape[1], KV_HEADS=kv.kv_heads, HEAD_DIM=kv.head_dim,
        HEAD_ROOM=head_room, BLOCK_TOKENS=kv.block_tokens, BLOCK_M=block_m,
        BLOCK_CTX=max(16, context), DECODE=decode,
        num_warps=max(8, tuning.warps) if wide else tuning.warps, num_stages=tuning.stages,
    )  # fmt: skip
