"""kv_write by the compiled library."""

from __future__ import annotations

from torch import Tensor, ops

from tenora_kernels.compiled.calls import DTYPES, named_errors
from tenora_kernels.cpu import kv_write as plain
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
    """See tenora_kernels.kv_write. Positions and slots outside their tables are refused too."""
    if q.dtype not in DTYPES:
        plain.kv_write(q, k, v, cos, sin, positions, pool, kv, layer, slots)
        return
    with named_errors("kv_write"):
        ops.tenora.kv_write.default(
            q,
            k,
            v,
            cos,
            sin,
            positions,
            pool,
            kv.num_layers,
            kv.block_tokens,
            kv.kv_heads,
            layer,
            slots,
        )
