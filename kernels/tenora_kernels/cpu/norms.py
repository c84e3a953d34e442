"""rms_norm and silu_mul in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See tenora_kernels.rms_norm."""
    wide = x.float()
    mean_square = wide.square().mean(-1, keepdim=True)
    factor = torch.rsqrt(mean_square + eps) + (mean_square - mean_square)  # NaN where infinite
    return (wide * factor).to(x.dtype).mul_(weight)


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    """See tenora_kernels.rms_norm with a residual."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    """See tenora_kernels.silu_mul."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
