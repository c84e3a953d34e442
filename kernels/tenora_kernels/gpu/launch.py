"""What the Triton launchers share: block sizes, and the slices of a packed output on the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


def power_of_two(value: int, least: int) -> int:
    """The least power of two that is at least both."""
    return max(least, 1 << max(0, value - 1).bit_length())


def dot_precision(dtype: torch.dtype) -> str:
    """How tl.dot treats float32 operands. Exact where the model is float32. Under a 16-bit model
    float32 operands are intermediates, and tf32 keeps three bits more than the bfloat16 weights
    they meet."""
    return "ieee" if dtype == torch.float32 else "tf32"


def slice_table(modules: Sequence[int], widths: Sequence[int], device: torch.device) -> Tensor:
    """[slices, 3] int32: module, first column, width. Made once per combination, so that no launch
    copies from the host."""
    return _slice_table(tuple(modules), tuple(widths), device)


@functools.cache
def _slice_table(modules: tuple[int, ...], widths: tuple[int, ...], device: torch.device) -> Tensor:
    rows: list[tuple[int, int, int]] = []
    column = 0
    for module, width in zip(modules, widths, strict=True):
        rows.append((module, column, width))
        column += width
    return torch.tensor(rows, dtype=torch.int32).to(device)
