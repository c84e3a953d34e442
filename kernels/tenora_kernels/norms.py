"""rms_norm and silu_mul: the elementwise ops of a Llama layer, fused where it pays."""

from __future__ import annotations

from typing import overload

from torch import Tensor

from tenora_kernels.backend import implementation
from tenora_kernels.checks import (
    require,
    require_dense_rows,
    require_dims,
    require_float,
    require_like,
    require_shape,
)


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: None) -> Tensor: ...
@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,  # [num_tokens, hidden], or any leading axes
    weight: Tensor,  # [hidden]
    eps: float,
    residual: Tensor | None = None,  # as x
) -> Tensor | tuple[Tensor, Tensor]:
    """Root mean square norm over the last axis: variance in float32, the normalised value cast to
    x's dtype and then scaled by `weight`, as transformers' LlamaRMSNorm. A row whose squares
    overflow is NaN, where that is 0: a row of zeros has logits that are numbers and mean nothing.

    With `residual`, returns (the norm of x + residual, x + residual).

    Raises KernelInputError when shapes, dtypes, strides or devices disagree.
    """
    require_shape(weight, "weight", x.shape[-1])
    require_float(x, "x")
    require_like(weight, "weight", x, x.dtype)
    require_dense_rows(x, "x")
    ops = implementation(x.device)
    if residual is None:
        return ops.rms_norm(x, weight, eps)
    require_shape(residual, "residual", *x.shape)
    require_like(residual, "residual", x, x.dtype)
    require_dense_rows(residual, "residual")
    return ops.add_rms_norm(x, weight, eps, residual)


def silu_mul(
    gate_up: Tensor,  # [num_tokens, 2 * intermediate]
) -> Tensor:
    """`silu(gate) * up` of a packed gate and up projection -> `[num_tokens, intermediate]`.

    Raises KernelInputError when the last axis is odd or not dense.
    """
    require_dims(gate_up, "gate_up", 2)
    require(gate_up.shape[1] % 2 == 0, "gate_up has an odd width {}", gate_up.shape[1])
    require_float(gate_up, "gate_up")
    require_dense_rows(gate_up, "gate_up")
    return implementation(gate_up.device).silu_mul(gate_up)
