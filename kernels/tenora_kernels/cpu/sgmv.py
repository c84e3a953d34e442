"""sgmv in plain torch: gathers the weights of the batch's adapters out of the arena and multiplies
densely. No loop over rows or adapters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_kernels.cpu.row_blocks import BlendedBlock, PaddedBlock
from tenora_kernels.cpu.scratch import Scratch
from tenora_kernels.segments import SCALE_BYTES, AdapterSegments, AdapterTable


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
    """See tenora_kernels.sgmv."""
    for block in segments.blocks():
        if isinstance(block, BlendedBlock):
            num_modules = table.rank.shape[2]
            for start, stop, column in _consecutive(modules, widths):
                bounds = block.bounds[layer * num_modules + modules[start] :]
                _blended(y, x, pool, block, bounds, widths[start:stop], column)
        else:
            _padded(y, x, pool, table, block, layer, modules, widths)


def _consecutive(modules: Sequence[int], widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first slice, one past the last, first column) of runs of neighbouring modules: their rank
    rows lie side by side, so one product does all their shrinks."""
    runs: list[tuple[int, int, int]] = []
    start = column = 0
    for stop in range(1, len(modules) + 1):
        if stop == len(modules) or modules[stop] != modules[stop - 1] + 1:
            runs.append((start, stop, column))
            column += sum(widths[start:stop])
            start = stop
    return runs


def _weights(
    pool: Tensor,
    index: Tensor,  # [n] int64
    width: int,
    dtype: torch.dtype,
    scratch: Scratch,
    name: str,
) -> Tensor:  # [n, width]
    """The rows of weights that start at each index, in this dtype."""
    if pool.dtype != torch.int8:
        return _gather(pool, index, width, scratch, name)
    rows = _gather(pool, index - SCALE_BYTES, SCALE_BYTES + width, scratch, name)
    scale = rows[:, :SCALE_BYTES].contiguous().view(torch.float32)  # [n, 1]
    return (rows[:, SCALE_BYTES:] * scale).to(dtype)


def _gather(pool: Tensor, index: Tensor, width: int, scratch: Scratch, name: str) -> Tensor:
    """Copies of the `width` elements of the pool that start at each index: `[n, width]`.

    The pool is seen as overlapping rows, one starting at each element, so a row may start anywhere.
    """
    windows = pool.as_strided((pool.shape[0] - width + 1, width), (1, 1))
    out = scratch.take(name, (index.shape[0], width), pool.dtype)
    torch.index_select(windows, 0, index, out=out)
    return out


def _blended(
    y: Tensor,
    x: Tensor,
    pool: Tensor,
    block: BlendedBlock,
    bounds: Sequence[int],  # the rank rows of this run of modules, then of the rest
    widths: Sequence[int],
    column: int,
) -> None:
    first, last = bounds[0], bounds[len(widths)]
    if first == last:
        return
    rows = block.rows
    weight = _weights(pool, block.a_index[first:last], x.shape[1], x.dtype, block.scratch, "a")
    hidden = torch.mm(x[rows], weight.t())
    hidden.mul_(block.scale[first:last])
    foreign = block.foreign_to(first, last)
    if foreign is not None:
        hidden.masked_fill_(foreign, 0)
    for index, width in enumerate(widths):
        low, high = bounds[index], bounds[index + 1]
        if low < high:
            weight = _weights(pool, block.b_index[low:high], width, x.dtype, block.scratch, "b")
            part = hidden[:, low - first : high - first]
            target = y[:, column : column + width]
            if isinstance(rows, slice):
                target[rows].addmm_(part, weight)
            else:
                target.index_add_(0, rows, torch.mm(part, weight))
        column += width


def _padded(
    y: Tensor,
    x: Tensor,
    pool: Tensor,
    table: AdapterTable,
    block: PaddedBlock,
    layer: int,
    modules: Sequence[int],
    widths: Sequence[int],
) -> None:
    count = block.slots.shape[0]
    inputs = x.index_select(0, block.rows).view(count, block.length, x.shape[1])
    granule = table.granule_offset[block.slots, layer]  # [n, max_rank]
    rows = block.rows if block.real is None else block.rows[block.real]
    column = 0
    for module, width in zip(modules, widths, strict=True):
        rank_max = block.rank_max[layer][module]
        if rank_max:
            delta = _padded_delta(inputs, pool, table, block, granule, layer, module, width)
            if block.real is not None:
                delta = delta.index_select(0, block.real)
            y[:, column : column + width].index_add_(0, rows, delta)
        column += width


def _padded_delta(
    inputs: Tensor,  # [n, length, in_features]
    pool: Tensor,
    table: AdapterTable,
    block: PaddedBlock,
    granule: Tensor,  # [n, max_rank] int64
    layer: int,
    module: int,
    width: int,
) -> Tensor:  # [n * length, width]
    count, _, in_features = inputs.shape
    rank_max = block.rank_max[layer][module]
    missing = torch.arange(rank_max) >= table.rank[block.slots, layer, module, None]
    a_index = granule[:, :rank_max] + table.a_offset[block.slots, layer, module, None]
    b_index = granule[:, :rank_max] + table.b_offset[block.slots, layer, module, None]
    # Padding points at weights that exist; what comes of them is masked out.
    real = (~missing).flatten().nonzero()[0]
    a_index = torch.where(missing, a_index.flatten()[real], a_index).flatten()
    b_index = torch.where(missing, b_index.flatten()[real], b_index).flatten()
    a = _weights(pool, a_index, in_features, inputs.dtype, block.scratch, "a")
    a = a.view(count, rank_max, in_features)
    hidden = torch.bmm(inputs, a.transpose(1, 2))
    hidden.mul_(table.scale[block.slots, layer, module, None, None])
    hidden.masked_fill_(missing[:, None], 0)
    b = _weights(pool, b_index, width, inputs.dtype, block.scratch, "b")
    return torch.bmm(hidden, b.view(count, rank_max, width)).view(-1, width)
