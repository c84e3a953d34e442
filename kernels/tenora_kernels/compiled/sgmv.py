"""sgmv by the compiled library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_kernels.compiled.calls import DTYPES
from tenora_kernels.cpu import sgmv as plain
from tenora_kernels.segments import AdapterSegments, AdapterTable


def sgmv(
    y: Tensor,  # [num_tokens, sum(widths)], changed in place
    x: Tensor,  # [num_tokens, in_features]
    pool: Tensor,  # [pool_elements]
    table: AdapterTable,
    segments: AdapterSegments,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> None:
    """See tenora_kernels.sgmv. The library checks its inputs, and raises RuntimeError."""
    if x.dtype not in DTYPES:
        plain.sgmv(y, x, pool, table, segments, layer, modules, widths)
        return
    torch.ops.tenora.sgmv.default(
        y,
        x,
        pool,
        table.granule_offset,
        table.rank,
        table.a_offset,
        table.b_offset,
        table.scale,
        segments.row_slot,
        layer,
        modules,
        widths,
    )
