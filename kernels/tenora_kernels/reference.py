"""What every op must compute, in float32 and one row at a time. Deliberately simple: loops over
rows, ranks and heads, no sharing with the implementations it judges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_kernels.segments import BASE_SLOT, SCALE_BYTES, AdapterTable, KVLayout


def sgmv(
    y: Tensor,  # [num_tokens, sum(widths)]
    x: Tensor,  # [num_tokens, in_features]
    pool: Tensor,  # [pool_elements]
    table: AdapterTable,
    row_slot: Tensor,  # [num_tokens]
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> Tensor:
    """y + scale * (x A^T) B, as a new float32 tensor."""
    result = y.float().clone()
    in_features = x.shape[1]
    for row, slot in enumerate(row_slot.tolist()):
        if slot == BASE_SLOT:
            continue
        column = 0
        for module, width in zip(modules, widths, strict=True):
            scale = float(table.scale[slot, layer, module])
            for rank_row in range(int(table.rank[slot, layer, module])):
                granule = int(table.granule_offset[slot, layer, rank_row])
                a = granule + int(table.a_offset[slot, layer, module])
                b = granule + int(table.b_offset[slot, layer, module])
                hidden = torch.dot(x[row].float(), weights(pool, a, in_features))
                update = scale * hidden * weights(pool, b, width)
                result[row, column : column + width] += update
            column += width
    return result


def weights(pool: Tensor, start: int, length: int) -> Tensor:
    """The row of adapter weights that starts at this element, float32."""
    row = pool[start : start + length].float()
    if pool.dtype == torch.int8:
        row *= pool[start - SCALE_BYTES : start].clone().view(torch.float32)
    return row


def paged_attention(
    q: Tensor,  # [num_tokens, heads, head_dim]
    pool: Tensor,  # [num_pages, page_elements]
    kv: KVLayout,
    layer: int,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    scale: float,
) -> Tensor:
    """Softmax attention of every query over the tokens up to its own, as float32."""
    pages = pool.float().view(-1, kv.num_layers, 2, kv.block_tokens, kv.kv_heads, kv.head_dim)
    heads = q.shape[1]
    result = torch.zeros(q.shape)
    row = 0
    for query_len, context, blocks in zip(query_lens, context_lens, block_tables, strict=True):
        for position in range(context - query_len, context):
            seen = range(position + 1)
            places = [(blocks[t // kv.block_tokens], t % kv.block_tokens) for t in seen]
            for head in range(heads):
                kv_head = head * kv.kv_heads // heads
                keys = torch.stack([pages[p, layer, 0, o, kv_head] for p, o in places])
                values = torch.stack([pages[p, layer, 1, o, kv_head] for p, o in places])
                weights = torch.softmax(keys @ q[row, head].float() * scale, dim=0)
                result[row, head] = weights @ values
            row += 1
    return result


def rotate(
    x: Tensor,  # [num_tokens, heads, head_dim]
    cos: Tensor,  # [max_positions, rotary_dim / 2]
    sin: Tensor,
    positions: Tensor,  # [num_tokens]
) -> Tensor:
    """Rotary embedding, dimension i paired with i + rotary_dim / 2, as float32."""
    result = x.float().clone()
    half = cos.shape[1]
    for row, position in enumerate(positions.tolist()):
        for i in range(half):
            c, s = cos[position, i], sin[position, i]
            low, high = x[row, :, i].float(), x[row, :, i + half].float()
            result[row, :, i] = low * c - high * s
            result[row, :, i + half] = high * c + low * s
    return result


def kv_write(
    k: Tensor,  # [num_tokens, kv_heads, head_dim], already rotated
    v: Tensor,  # [num_tokens, kv_heads, head_dim]
    pool: Tensor,  # [num_pages, page_elements]
    kv: KVLayout,
    layer: int,
    slots: Tensor,  # [num_tokens]
) -> Tensor:
    """The arena with k and v written to their slots, as a new float32 tensor."""
    result = pool.float().clone()
    pages = result.view(-1, kv.num_layers, 2, kv.block_tokens, kv.kv_heads, kv.head_dim)
    for row, slot in enumerate(slots.tolist()):
        page, offset = divmod(slot, kv.block_tokens)
        pages[page, layer, 0, offset] = k[row].float()
        pages[page, layer, 1, offset] = v[row].float()
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, as float32; NaN where that mean is
    infinite."""
    wide = x.float()
    mean_square = (wide * wide).mean(-1, keepdim=True)
    normed = wide / torch.sqrt(mean_square + eps) * weight.float()
    return normed.masked_fill(mean_square.isinf(), torch.nan)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate * sigmoid(gate) * up, as float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, as float32."""
    result = torch.stack([weight.float() @ row for row in x.float()])
    return result if bias is None else result + bias.float()
