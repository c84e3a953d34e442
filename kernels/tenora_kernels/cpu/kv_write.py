"""kv_write in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from tenora_kernels.segments import KVLayout


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
    half = cos.shape[1]
    cos_rows = cos.index_select(0, positions).to(q.dtype)[:, None]
    sin_rows = sin.index_select(0, positions).to(q.dtype)[:, None]
    _rotate(q, q, cos_rows, sin_rows, half)
    rotated = k.clone(memory_format=torch.contiguous_format)
    _rotate(rotated, k, cos_rows, sin_rows, half)
    # The arena as lines of kv_heads * head_dim; a token's key lies in line
    # page * (layers * 2 * block_tokens) + layer * 2 * block_tokens + offset.
    lines = pool.view(-1, kv.kv_heads * kv.head_dim)
    pages = torch.div(slots, kv.block_tokens, rounding_mode="floor")
    extra = (2 * kv.num_layers - 1) * kv.block_tokens
    key_lines = torch.add(slots, pages, alpha=extra).add_(2 * layer * kv.block_tokens)
    lines.index_copy_(0, key_lines, rotated.flatten(1))
    lines.index_copy_(0, key_lines.add_(kv.block_tokens), v.flatten(1))


def _rotate(target: Tensor, source: Tensor, cos: Tensor, sin: Tensor, half: int) -> None:
    """target = source * cos + rotate_half(source) * sin on the first 2 * half dimensions."""
    first, second = source[..., :half], source[..., half : 2 * half]
    low = (first * cos).sub_(second * sin)
    high = (second * cos).add_(first * sin)
    target[..., :half] = low
    target[..., half : 2 * half] = high
