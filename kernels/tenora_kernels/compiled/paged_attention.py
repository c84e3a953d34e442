"""paged_attention by the compiled library."""

from __future__ import annotations

from torch import Tensor, ops

from tenora_kernels.compiled.calls import DTYPES, named_errors
from tenora_kernels.cpu import paged_attention as plain
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
    """See tenora_kernels.paged_attention. Pages outside the arena are refused too."""
    if q.dtype not in DTYPES:
        plain.paged_attention(q, pool, kv, layer, layout, scale, out)
        return
    with named_errors("paged_attention"):
        ops.tenora.paged_attention.default(
            q,
            pool,
            kv.num_layers,
            kv.block_tokens,
            kv.kv_heads,
            layer,
            layout.query_start,
            layout.context_len,
            layout.block_table,
            scale,
            out,
        )


def attention_bytes(
    heads: int, kv_heads: int, head_dim: int, *, threads: int, rows: int, context: int
) -> int:
    """What the library keeps at most for the attention of steps of so many rows, none of which has
    a longer context: each thread's scratch, and results of contexts that several threads share."""
    found: int = ops.tenora.attention_most_bytes.default(
        heads, kv_heads, head_dim, threads, rows, context
    )
    return found
