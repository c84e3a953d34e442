"""paged_attention: causal attention of ragged queries over keys and values kept in arena pages."""

from __future__ import annotations

import torch
from torch import Tensor

from tenora_kernels.backend import implementation
from tenora_kernels.checks import (
    require,
    require_contiguous,
    require_dense_rows,
    require_dims,
    require_float,
    require_kv_pool,
    require_like,
    require_shape,
)
from tenora_kernels.segments import AttentionLayout, KVLayout


def paged_attention(
    q: Tensor,  # [num_tokens, heads, head_dim], rotated
    pool: Tensor,  # [num_pages, page_elements], the arena; CUDA: or fp8
    kv: KVLayout,
    layer: int,
    layout: AttentionLayout,
    scale: float,
    out: Tensor | None = None,  # [num_tokens, heads, head_dim]
) -> Tensor:
    """Softmax attention of each query over its own sequence, causal, decode rows and prefill
    chunks in one call; `heads` may be a multiple of `kv.kv_heads` (grouped queries).

    The keys and values of this step's tokens must have been written (kv_write). Returns
    `[num_tokens, heads, head_dim]` (`out` when given), of q's dtype. Sums are float32.

    Raises KernelInputError when shapes, dtypes, strides or devices disagree.
    """
    require_dims(q, "q", 3)
    num_tokens, heads, head_dim = q.shape
    require(head_dim == kv.head_dim, "q has head_dim {}, the arena {}", head_dim, kv.head_dim)
    require(heads % kv.kv_heads == 0, "{} heads over {} KV heads", heads, kv.kv_heads)
    require_dims(pool, "pool", 2)
    require_shape(pool, "pool", pool.shape[0], kv.page_elements)
    require_float(q, "q")
    require_kv_pool(pool, q)
    require_like(layout.block_table, "layout.block_table", q, torch.int32)
    require_contiguous(pool, "pool")
    require_dense_rows(q, "q")
    require(0 <= layer < kv.num_layers, "layer {} of {}", layer, kv.num_layers)
    require(
        num_tokens == layout.num_rows,
        "q has {} query rows, the layout {}",
        num_tokens,
        layout.num_rows,
    )
    room = layout.max_blocks * kv.block_tokens
    require(
        layout.max_context_len <= room, "{} tokens in blocks for {}", layout.max_context_len, room
    )
    if out is None:
        out = torch.empty(num_tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    require_shape(out, "out", num_tokens, heads, head_dim)
    require_like(out, "out", q, q.dtype)
    require_contiguous(out, "out")
    if num_tokens:
        implementation(q.device).paged_attention(q, pool, kv, layer, layout, scale, out)
    return out
