"""fixed_linear: a linear whose rows have the same bits whatever rows stand beside them."""

from __future__ import annotations

from torch import Tensor

from tenora_kernels.backend import implementation
from tenora_kernels.checks import (
    require_contiguous,
    require_dense_rows,
    require_dims,
    require_float,
    require_like,
    require_shape,
)


def fixed_linear(
    x: Tensor,  # [num_rows, in_features]
    weight: Tensor,  # [out_features, in_features]
    bias: Tensor | None,  # [out_features]
) -> Tensor:  # [num_rows, out_features]
    """`x W^T + b`, summed in float32 in an order that does not depend on the number of rows, which
    libraries choose their kernels by (batch invariance: He et al., "Defeating Nondeterminism in LLM
    Inference", 2025).

    Raises KernelInputError when shapes, dtypes, strides or devices disagree.
    """
    require_dims(x, "x", 2)
    require_float(x, "x")
    require_dense_rows(x, "x")
    require_dims(weight, "weight", 2)
    require_shape(weight, "weight", weight.shape[0], x.shape[1])
    require_like(weight, "weight", x, x.dtype)
    require_contiguous(weight, "weight")
    if bias is not None:
        require_shape(bias, "bias", weight.shape[0])
        require_like(bias, "bias", x, x.dtype)
        require_contiguous(bias, "bias")
    return implementation(x.device).fixed_linear(x, weight, bias)
