"""rms_norm and silu_mul by the compiled library."""

from __future__ import annotations

from torch import Tensor, ops

from tenora_kernels.compiled.calls import DTYPES, named_errors
from tenora_kernels.cpu import norms as plain


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See tenora_kernels.rms_norm."""
    if x.dtype not in DTYPES:
        return plain.rms_norm(x, weight, eps)
    with named_errors("rms_norm"):
        normed: Tensor = ops.tenora.rms_norm.default(x, weight, eps)
    return normed


def add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    """See tenora_kernels.rms_norm with a residual."""
    if x.dtype not in DTYPES:
        return plain.add_rms_norm(x, weight, eps, residual)
    with named_errors("rms_norm"):
        normed, total = ops.tenora.add_rms_norm.default(x, weight, eps, residual)
    return normed, total


def silu_mul(gate_up: Tensor) -> Tensor:
    """See tenora_kernels.silu_mul."""
    if gate_up.dtype not in DTYPES:
        return plain.silu_mul(gate_up)
    with named_errors("silu_mul"):
        product: Tensor = ops.tenora.silu_mul.default(gate_up)
    return product
