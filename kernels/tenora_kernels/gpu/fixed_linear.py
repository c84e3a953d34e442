"""fixed_linear in Triton: tiles of one height, each program the whole sum over the input features.

Every row is one of BLOCK_M of the same instructions, however many of them are real, so that
its bits do not depend on the others. A decode step waits for the weights, and empty rows of a tile
cost it nothing; with many rows the tiles of a few columns follow each other and find
the weights in the cache."""

# A kernel's parameters get their types at launch.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_kernels.gpu.launch import power_of_two

BLOCK_M = 64
"""The least that a Hopper GPU's widest products (wgmma) take."""

MANY_ROWS = 256
"""From here on arithmetic counts, and programs have more columns: sums stay what they are."""

WIDE_PROGRAMS = 264
"""Of few rows: with so many programs, two a multiprocessor of an H100, each takes 64 columns."""


@triton.jit(do_not_specialize=["num_rows"])
def _fixed_linear(
    x, weight, bias, out, num_rows, x_stride,
    OUT: tl.constexpr, IN: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_real, column_real = rows < num_rows, columns < OUT
    x_line = x + rows.to(tl.int64)[:, None] * x_stride
    weight_line = weight + columns.to(tl.int64)[None, :] * IN
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, IN, BLOCK_K):
        features = k + tl.arange(0, BLOCK_K)
        real = features < IN
        x_part = tl.load(
            x_line + features[None, :], mask=row_real[:, None] & real[None, :], other=0.0
        )
        weight_part = tl.load(
            weight_line + features[:, None], mask=real[:, None] & column_real[None, :], other=0.0
        )
        total = tl.dot(x_part, weight_part, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=column_real, other=0.0).to(tl.float32)[None, :]
    place = rows.to(tl.int64)[:, None] * OUT + columns[None, :]
    tl.store(
        out + place, total.to(out.dtype.element_ty), mask=row_real[:, None] & column_real[None, :]
    )


def _columns(num_rows: int, out_features: int, exact: bool) -> int:
    """Of a program. Narrow ones fill the device where there are few outputs, but read all of x for
    every 32 columns: at 64 rows three times as much as wide ones."""
    if exact:
        return 32
    if num_rows >= MANY_ROWS:
        return 128
    return 64 if out_features // 64 >= WIDE_PROGRAMS else 32


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See tenora_kernels.fixed_linear."""
    num_rows, in_features = x.shape
    out_features = weight.shape[0]
    out = torch.empty(num_rows, out_features, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    exact = x.element_size() == 4  # products without tensor cores: small blocks
    block_n = _columns(num_rows, out_features, exact)
    block_k = min(32 if exact else 128 if block_n == 32 else 64, power_of_two(in_features, 16))
    grid = (triton.cdiv(num_rows, BLOCK_M), triton.cdiv(out_features, block_n))
    _fixed_linear[grid](
        x, weight, weight if bias is None else bias, out, num_rows, x.stride(0),
        OUT=out_features, IN=in_features, HAS_BIAS=bias is not None,
        BLOCK_M=BLOCK_M, BLOCK_N=block_n, BLOCK_K=block_k,
        num_warps=8 if exact else 4, num_stages=2 if exact else 4,
    )  # fmt: skip
    return out
