"""kv_write in Triton: one program per token and head rotates, and stores keys and values."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.gpu.launch import check_fp8, power_of_two
from tenora_kernels.segments import KVLayout


@triton.jit
def _stored(value, kind: tl.constexpr):
    """As the arena keeps it; fp8 (e4m3, scale 1) saturates at its largest number."""
    if kind == tl.float8e4nv:
        value = tl.clamp(value.to(tl.float32), -448.0, 448.0)
    return value.to(kind)


@triton.jit(do_not_specialize=["layer"])
def _rotate_and_store(
    q, k, v, cos, sin, positions, pool, slots,
    layer, q_row_stride, q_head_stride, k_row_stride, k_head_stride,
    v_row_stride, v_head_stride, page_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, HALF_ROOM: tl.constexpr, HEAD_ROOM: tl.constexpr,
):  # fmt: skip
    """Programs 0..HEADS-1 of a token rotate a query head in place, the others rotate a key head
    into the arena and copy its value head. A row of slot -1 is stored nowhere."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row)
    half = tl.arange(0, HALF_ROOM)
    half_real = half < HALF
    angle = tl.load(positions + row) * HALF + half
    # The tables are cast to the tensors' dtype first, as transformers does.
    kind = q.dtype.element_ty
    c = tl.load(cos + angle, mask=half_real, other=0.0).to(kind).to(tl.float32)
    s = tl.load(sin + angle, mask=half_real, other=0.0).to(kind).to(tl.float32)
    if head < HEADS:
        source = q + row * q_row_stride + head * q_head_stride
        low = tl.load(source + half, mask=half_real, other=0.0).to(tl.float32)
        high = tl.load(source + HALF + half, mask=half_real, other=0.0).to(tl.float32)
        tl.store(source + half, (low * c - high * s).to(kind), mask=half_real)
        tl.store(source + HALF + half, (high * c + low * s).to(kind), mask=half_real)
    elif slot >= 0:
        kv_head = head - HEADS
        kept: tl.constexpr = pool.dtype.element_ty
        LAYER: tl.constexpr = 2 * BLOCK_TOKENS * KV_HEADS * HEAD_DIM
        line = (slot // BLOCK_TOKENS) * page_stride + layer * LAYER
        line += ((slot % BLOCK_TOKENS) * KV_HEADS + kv_head) * HEAD_DIM
        source = k + row * k_row_stride + kv_head * k_head_stride
        low = tl.load(source + half, mask=half_real, other=0.0).to(tl.float32)
        high = tl.load(source + HALF + half, mask=half_real, other=0.0).to(tl.float32)
        tl.store(pool + line + half, _stored((low * c - high * s).to(kind), kept), mask=half_real)
        turned = (high * c + low * s).to(kind)
        tl.store(pool + line + HALF + half, _stored(turned, kept), mask=half_real)
        dims = tl.arange(0, HEAD_ROOM)
        dim_real = dims < HEAD_DIM
        if 2 * HALF < HEAD_DIM:
            passed = dim_real & (dims >= 2 * HALF)
            rest = tl.load(source + dims, mask=passed, other=0.0)
            tl.store(pool + line + dims, _stored(rest, kept), mask=passed)
        line += BLOCK_TOKENS * KV_HEADS * HEAD_DIM
        value = tl.load(
            v + row * v_row_stride + kv_head * v_head_stride + dims, mask=dim_real, other=0.0
        )
        tl.store(pool + line + dims, _stored(value, kept), mask=dim_real)


def kv_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    pool: Tensor,
    kv: KVLayout,
    layer: int,
    slots: Tensor,
) -> None:
    """See tenora_kernels.kv_write."""
    check_fp8(pool)
    num_tokens, heads, head_dim = q.shape
    half = cos.shape[1]
    _rotate_and_store[(num_tokens, heads + kv.kv_heads)](
        q, k, v, cos, sin, positions, pool, slots,
        layer, q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        pool.stride(0),
        HEADS=heads, KV_HEADS=kv.kv_heads, HEAD_DIM=head_dim, HALF=half,
        BLOCK_TOKENS=kv.block_tokens, HALF_ROOM=power_of_two(half, 1),
        HEAD_ROOM=power_of_two(head_dim, 1), num_warps=1,
    )  # fmt: skip
