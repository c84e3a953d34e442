"""Products on weights that are packed once, by the compiled library: what the compiled decoder is
made of, by itself for tests and benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_weight(
    weight: Tensor,  # [out, in], dense, on the CPU, float32 or bfloat16; in is even
) -> Tensor:  # [ceil(out / 16) * 16 * in]
    """The weight in panels of 16 outputs. Raises RuntimeError when it is not as said above."""
    packed: Tensor = torch.ops.tenora.pack_weight(weight)
    return packed


def packed_linear(
    x: Tensor,  # [rows, in]
    packed: Tensor,  # by pack_weight
    out_features: int,
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [rows, out]
    """`x W^T + b`, sums in float32, rounded once. Raises RuntimeError when shapes disagree."""
    y = torch.empty(x.shape[0], out_features, dtype=x.dtype)
    torch.ops.tenora.packed_linear(y, x, packed, bias, False)
    return y


def add_packed_linear(
    y: Tensor,  # [rows, out], changed in place
    x: Tensor,  # [rows, in]
    packed: Tensor,
    bias: Tensor | None = None,
) -> None:
    """`y += x W^T + b`, rounded once. Raises RuntimeError when shapes disagree."""
    torch.ops.tenora.packed_linear(y, x, packed, bias, True)
