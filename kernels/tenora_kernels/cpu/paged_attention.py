"""paged_attention in plain torch: gathers the pages of like-sized sequences and attends in one
padded batch. No loop over sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tenora_kernels.cpu.query_groups import PreparedGroup, QueryGroup
from tenora_kernels.segments import AttentionLayout, KVLayout


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
    groups = layout.groups
    for group in groups:
        prepared = group.prepare(kv.block_tokens, q.dtype)
        keys, values = _gather(pool, kv, layer, group, prepared)
        whole = len(groups) == 1 and group.real is None
        rows = q if whole else q.index_select(0, group.rows)
        attend = _decode if group.query_len == 1 else _prefill
        result = attend(rows, keys, values, kv, group, prepared, scale)
        if whole:
            out.copy_(result)
        elif group.real is None:
            out.index_copy_(0, group.rows, result)
        else:
            real = group.real
            out.index_copy_(0, group.rows[real], result[real])


def _gather(
    pool: Tensor, kv: KVLayout, layer: int, group: QueryGroup, prepared: PreparedGroup
) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer, `[n, padded_len, kv_heads * head_dim]` each.

    Pages hold other sequences' leftovers past a sequence's end; they are zeroed here, because a
    mask does not stop a NaN in them from reaching the sums.
    """
    width = kv.kv_heads * kv.head_dim
    block = kv.block_tokens * width
    shape = (2, prepared.pages.shape[0], block)
    gathered = group.scratch.take("kv", shape, pool.dtype)
    start = layer * 2 * block
    torch.index_select(pool[:, start : start + block], 0, prepared.pages, out=gathered[0])
    torch.index_select(
        pool[:, start + block : start + 2 * block], 0, prepared.pages, out=gathered[1]
    )
    lines = gathered.view(2, -1, width)
    lines.index_fill_(1, prepared.stale, 0)
    keys, values = lines.view(2, -1, prepared.padded_len, width).unbind(0)
    return keys, values


def _decode(
    q: Tensor,  # [n, heads, head_dim]
    keys: Tensor,  # [n, padded_len, kv_heads * head_dim]
    values: Tensor,
    kv: KVLayout,
    group: QueryGroup,
    prepared: PreparedGroup,
    scale: float,
) -> Tensor:  # [n, heads, head_dim]
    """All heads of a sequence in one product: queries are laid block-diagonally over the KV heads.

    That multiplies the arithmetic by kv_heads, but a decode step waits for memory: 16 sequences of
    200 tokens, 9 heads over 3: 120 us for both products against 366 us of torch's attention.
    """
    n, heads, head_dim = q.shape
    kv_heads = kv.kv_heads
    spread = (n, kv_heads, heads // kv_heads, kv_heads, head_dim)
    diagonal = group.scratch.take_zeros("q", spread, q.dtype)
    diagonal.diagonal(dim1=1, dim2=3).copy_(
        q.view(n, kv_heads, heads // kv_heads, head_dim).permute(0, 2, 3, 1)
    )
    scores = torch.bmm(diagonal.view(n, heads, -1), keys.transpose(1, 2))
    weights = torch.softmax(scores.float().mul_(scale).add_(prepared.bias[:, 0]), dim=-1)
    mixed = torch.bmm(weights.to(q.dtype), values).view(spread)
    return mixed.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(n, heads, head_dim)


def _prefill(
    q: Tensor,  # [n * query_len, heads, head_dim]
    keys: Tensor,
    values: Tensor,
    kv: KVLayout,
    group: QueryGroup,
    prepared: PreparedGroup,
    scale: float,
) -> Tensor:  # [n * query_len, heads, head_dim]
    """torch's attention over the padded batch; the query heads of one KV head follow each other as
    further heads, each with an expanded view of its keys."""
    n = prepared.bias.shape[0]
    heads = q.shape[1]
    shared = heads // kv.kv_heads
    queries = q.view(n, group.query_len, heads, kv.head_dim).transpose(1, 2)

    def by_head(lines: Tensor) -> Tensor:
        split = lines.view(n, -1, kv.kv_heads, 1, kv.head_dim).permute(0, 2, 3, 1, 4)
        return split.expand(-1, -1, shared, -1, -1).reshape(n, heads, -1, kv.head_dim)

    result = functional.scaled_dot_product_attention(
        queries, by_head(keys), by_head(values), attn_mask=prepared.bias, scale=scale
    )
    return result.transpose(1, 2).reshape(-1, heads, kv.head_dim)
