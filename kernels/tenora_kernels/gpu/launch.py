"""What the Triton launchers share: block sizes, and the columns of a packed output on a device."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_kernels.checks import KernelInputError
from tenora_kernels.gpu import tuning


def power_of_two(value: int, least: int) -> int:
    """The least power of two that is at least both."""
    return max(least, 1 << max(0, value - 1).bit_length())


def check_fp8(pool: Tensor) -> None:
    """Raises KernelInputError for pages of fp8 on a GPU that has none."""
    if pool.dtype == torch.float8_e4m3fn and not tuning.has_fp8(pool.device):
        major, minor = tuning.capability(pool.device)
        raise KernelInputError(
            f"fp8 KV needs compute capability 8.9 (Ada, Hopper) or later, this GPU has "
            f"{major}.{minor}; set kv_dtype to auto"
        )


def column_blocks(
    modules: Sequence[int], widths: Sequence[int], block: int, device: torch.device
) -> Tensor:
    """[blocks, 5] int32: slice, module, first column in the slice, the slice's first column in the
    packed output, the slice's width. Blocks never cross slices. Made once per combination, so that
    no launch copies from the host."""
    return _column_blocks(tuple(modules), tuple(widths), block, device)


@functools.cache
def _column_blocks(
    modules: tuple[int, ...], widths: tuple[int, ...], block: int, device: torch.device
) -> Tensor:
    rows: list[tuple[int, int, int, int, int]] = []
    start = 0
    for index, (module, width) in enumerate(zip(modules, widths, strict=True)):
        rows += [(index, module, column, start, width) for column in range(0, width, block)]
        start += width
    return torch.tensor(rows, dtype=torch.int32).to(device)


@functools.cache
def module_table(modules: tuple[int, ...], device: torch.device) -> Tensor:
    """[slices] int32, the module of each slice, kept like `column_blocks`."""
    return torch.tensor(modules, dtype=torch.int32).to(device)
