"""Products on weights that are packed once, by the compiled library: what the compiled decoder is
made of, by itself for tests and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PANEL = 32  # outputs side by side (src/gemm.h)
INT8_STEP = 4  # inputs of one output next to each other, where they have 8 bits


@dataclass(frozen=True)
class PackedWeight:
    """An `[out, in]` weight in panels of 32 outputs, filled up to `ceil(out / 32)` of them."""

    out_features: int
    in_features: int
    packed: Tensor  # [panels * 32 * in], the weight's dtype, or uint8: whole numbers + 128
    scales: Tensor | None = None  # [panels * 32] float32, of each output, where uint8

    @property
    def tensors(self) -> list[Tensor]:
        return [self.packed] if self.scales is None else [self.packed, self.scales]


def pack_weight(
    weight: Tensor,  # [out, in], dense, on the CPU, float32 or bfloat16; in is even
) -> PackedWeight:
    """Raises RuntimeError when the weight is not as said above."""
    out_features, in_features = weight.shape
    return PackedWeight(out_features, in_features, torch.ops.tenora.pack_weight(weight))


def quantise_weight(
    weight: Tensor,  # [out, in], dense, on the CPU, float32 or bfloat16; in is a multiple of 4
) -> PackedWeight:
    """Rounded to 8 bits with one scale an output. Raises RuntimeError when the weight is not as
    said above."""
    out_features, in_features = weight.shape
    packed, scales = torch.ops.tenora.quantise_weight(weight)
    return PackedWeight(out_features, in_features, packed, scales)


def unpack_rows(
    weight: PackedWeight,
    rows: Tensor,  # [num_rows] int64
    dtype: torch.dtype,  # the weight's own, or what it was rounded from
) -> Tensor:  # [num_rows, in]
    """The weights of some outputs, as they are used in products."""
    step = INT8_STEP if weight.scales is not None else 4 // weight.packed.itemsize
    panels = weight.packed.view(-1, weight.in_features // step, PANEL, step)
    found = panels[rows // PANEL, :, rows % PANEL].flatten(1)
    if weight.scales is None:
        return found
    return ((found.float() - 128) * weight.scales[rows].unsqueeze(1)).to(dtype)


def packed_linear(
    x: Tensor,  # [rows, in]
    weight: PackedWeight,
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [rows, out]
    """`x W^T + b`, sums in float32, rounded once; for weights of 8 bits, x is rounded to 8 bits
    with one scale for each 64 inputs of a row.

    Raises RuntimeError when shapes or dtypes disagree.
    """
    y = torch.empty(x.shape[0], weight.out_features, dtype=x.dtype)
    torch.ops.tenora.packed_linear(y, x, weight.tensors, bias, False)
    return y


def add_packed_linear(
    y: Tensor,  # [rows, out], changed in place
    x: Tensor,  # [rows, in]
    weight: PackedWeight,
    bias: Tensor | None = None,
) -> None:
    """`y += x W^T + b`, rounded once. Raises RuntimeError when shapes or dtypes disagree."""
    torch.ops.tenora.packed_linear(y, x, weight.tensors, bias, True)
