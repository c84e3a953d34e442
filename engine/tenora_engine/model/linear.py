"""A linear over one or several packed projections, with each row's own adapter added."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.model.inputs import Arena
from tenora_engine.model.layers import LinearWeights
from tenora_engine.model.modules import LORA_MODULES
from tenora_kernels import sgmv
from tenora_kernels.segments import AdapterSegments

BLOCKING_ROWS = 16
"""The number of rows that oneDNN is told to block a weight for; it serves all others too. All
weights of SmolLM2-135M once, bf16, 2 threads: 1 / 16 / 64 rows take 8.4 / 11 / 27 ms, and
11.6 / 20 / 42 ms without blocking."""


def can_block(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights are kept in oneDNN's blocked order, which its matrix products then need not
    make anew each time."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch's own
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class PackedLinear:
    """`y = x W^T + b`, and what adapters add to the slices of y."""

    def __init__(self, weights: LinearWeights) -> None:
        weight = weights.weight
        self._blocked = can_block(weight.device, weight.dtype)
        if self._blocked:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, BLOCKING_ROWS)
        self._weight = weight
        self._bias = weights.bias
        self._modules = tuple(LORA_MODULES.index(module) for module in weights.modules)
        self._widths = weights.widths

    def __call__(self, x: Tensor) -> Tensor:
        if self._blocked:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return y
        return F.linear(x, self._weight, self._bias)

    def adapted(
        self,
        x: Tensor,  # [num_tokens, in]
        segments: AdapterSegments,
        arena: Arena,
        layer: int,
    ) -> Tensor:  # [num_tokens, out]
        """The base's output, plus what each row's adapter adds to the slices it has."""
        y = self(x)
        if segments.any_adapter:
            sgmv(y, x, arena.flat, arena.table, segments, layer, self._modules, self._widths)
        return y
