"""kv_write: rotary embedding of queries and keys, and the scatter of keys and values into pages."""

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
from tenora_kernels.segments import KVLayout


def kv_write(
    q: Tensor,  # [num_tokens, heads, head_dim], rotated in place
    k: Tensor,  # [num_tokens, kv_heads, head_dim], left as it is
    v: Tensor,  # [num_tokens, kv_heads, head_dim]
    cos: Tensor,  # [max_positions, rotary_dim / 2] float32
    sin: Tensor,  # [max_positions, rotary_dim / 2] float32
    positions: Tensor,  # [num_tokens] int64
    pool: Tensor,  # [num_pages, page_elements], the arena; CUDA: or fp8
    kv: KVLayout,
    layer: int,
    slots: Tensor,  # [num_tokens] int64, page * block_tokens + offset; CUDA: -1 is nowhere
) -> None:
    """Rotate q in place; write rotated k and v of each token to its slot of the arena.

    The half-split convention of Hugging Face's Llama: dimension i pairs with i + rotary_dim / 2,
    and cos and sin are cast to q's dtype before they are used, as transformers does. Dimensions
    from rotary_dim on are left as they are. q, k and v may be views of one packed projection.

    Raises KernelInputError when shapes, dtypes, strides or devices disagree.
    """
    require_dims(q, "q", 3)
    require_dims(cos, "cos", 2)
    require_dims(pool, "pool", 2)
    num_tokens, heads, _ = q.shape
    require_shape(q, "q", num_tokens, heads, kv.head_dim)
    require_shape(k, "k", num_tokens, kv.kv_heads, kv.head_dim)
    require_shape(v, "v", num_tokens, kv.kv_heads, kv.head_dim)
    require_shape(sin, "sin", *cos.shape)
    require_shape(positions, "positions", num_tokens)
    require_shape(slots, "slots", num_tokens)
    require_shape(pool, "pool", pool.shape[0], kv.page_elements)
    require_float(q, "q")
    require_like(k, "k", q, q.dtype)
    require_like(v, "v", q, q.dtype)
    require_kv_pool(pool, q)
    require_like(cos, "cos", q, torch.float32)
    require_like(sin, "sin", q, torch.float32)
    require_like(positions, "positions", q, torch.int64)
    require_like(slots, "slots", q, torch.int64)
    require_dense_rows(q, "q")
    require_dense_rows(k, "k")
    require_dense_rows(v, "v")
    for name, tensor in (("cos", cos), ("sin", sin), ("positions", positions), ("slots", slots)):
        require_contiguous(tensor, name)
    require_contiguous(pool, "pool")
    require(2 * cos.shape[1] <= kv.head_dim, "rotary_dim over head_dim: {}", 2 * cos.shape[1])
    require(0 <= layer < kv.num_layers, "layer {} of {}", layer, kv.num_layers)
    if num_tokens:
        implementation(q.device).kv_write(q, k, v, cos, sin, positions, pool, kv, layer, slots)
