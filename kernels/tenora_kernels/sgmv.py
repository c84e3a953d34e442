"""sgmv: adds every row's own LoRA update to packed linear outputs, all slices in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_kernels.backend import implementation
from tenora_kernels.checks import (
    require,
    require_contiguous,
    require_dense_rows,
    require_dims,
    require_float,
    require_like,
    require_shape,
)
from tenora_kernels.segments import AdapterSegments, AdapterTable


def sgmv(
    y: Tensor,  # [num_tokens, sum(widths)], changed in place
    x: Tensor,  # [num_tokens, in_features]
    pool: Tensor,  # [pool_elements], the flat arena, in x's dtype or int8
    table: AdapterTable,
    segments: AdapterSegments,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> None:
    """`y[t, slice_i] += scale * (x[t] A_i^T) B_i` for every row t that has an adapter.

    Slice i is the i-th run of `widths[i]` columns of y and belongs to module `modules[i]` of
    AdapterTable's last axis. Ranks are each adapter's own, sums are float32, and the result does
    not depend on which other rows are in the batch beyond the rounding of the GEMMs used; there are
    no atomics. Returns at once when no row has an adapter. After Punica's SGMV (Chen et al. 2023).

    Raises KernelInputError when shapes, dtypes, strides or devices disagree.
    """
    if not segments.any_adapter:
        return
    ops = implementation(x.device)
    if not ops.sgmv_checks:
        _check(y, x, pool, table, segments, layer, modules, widths)
        ops.sgmv(y, x, pool, table, segments, layer, modules, widths)
        return
    try:
        ops.sgmv(y, x, pool, table, segments, layer, modules, widths)
    except RuntimeError:
        _check(y, x, pool, table, segments, layer, modules, widths)  # says what is wrong
        raise


def _check(
    y: Tensor,
    x: Tensor,
    pool: Tensor,
    table: AdapterTable,
    segments: AdapterSegments,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> None:
    require(len(modules) == len(widths) > 0, "modules and widths need one entry per slice")
    require_dims(x, "x", 2)
    require_dims(pool, "pool", 1)
    require_shape(x, "x", segments.num_rows, x.shape[1])
    require_shape(y, "y", segments.num_rows, sum(widths))
    require_float(x, "x")
    require_like(y, "y", x, x.dtype)
    require_like(pool, "pool", x, torch.int8 if pool.dtype == torch.int8 else x.dtype)
    require_like(segments.row_slot, "row_slot", x, torch.int32)
    require_like(table.rank, "table.rank", x, torch.int32)
    require_dense_rows(x, "x")
    require_dense_rows(y, "y")
    require_contiguous(pool, "pool")
    _, layers, num_modules = table.rank.shape
    require(0 <= layer < layers, "layer {} of an adapter table of {}", layer, layers)
    require(
        min(modules) >= 0 and max(modules) < num_modules,
        "modules {} of an adapter table of {}",
        modules,
        num_modules,
    )
