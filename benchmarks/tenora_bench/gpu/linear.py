"""Linears whose rows have the same bits in any batch, beside the library's: what `batch_invariant`
takes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tenora_bench.gpu.measure import Ceilings, Machine, Report

HIDDEN, WIDTHS = 4096, (4096, 6144, 28672)  # of Llama-3.1-8B: out, QKV, gate and up
ROWS = (1, 16, 64, 256, 2048)
LAYERS = 4


def time_linear(report: Report, machine: Machine, ceilings: Ceilings) -> None:
    hidden, widths, rows = (64, (48,), (3,)) if machine.smoke else (HIDDEN, WIDTHS, ROWS)
    for width in widths:
        shape, device = (LAYERS, width, hidden), machine.device
        weights = torch.randn(shape, device=device).div(hidden**0.5).to(machine.dtype)
        for count in rows:
            name = f"fixed_linear {count} x {hidden} to {width}"
            report.attempt(name, partial(_time, report, machine, ceilings, name, weights, count))


def _time(
    report: Report,
    machine: Machine,
    ceilings: Ceilings,
    name: str,
    weights: Tensor,  # [layers, width, hidden]
    count: int,
) -> None:
    _, width, hidden = weights.shape
    x = torch.randn(count, hidden, device=machine.device).to(machine.dtype)
    own, library = partial(_own, machine, x, weights), partial(_library, x, weights)
    seconds = machine.seconds(own, LAYERS)
    moved = (count * (hidden + width) + hidden * width) * weights.element_size()
    floor = ceilings.floor(moved, 2 * count * hidden * width)
    report.add(name, seconds, floor, over_library=seconds / machine.seconds(library, LAYERS))


def _own(machine: Machine, x: Tensor, weights: Tensor, layer: int) -> Tensor:
    return machine.ops.fixed_linear(x, weights[layer], None)


def _library(x: Tensor, weights: Tensor, layer: int) -> Tensor:
    return functional.linear(x, weights[layer])
