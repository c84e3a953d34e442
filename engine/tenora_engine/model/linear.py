"""A linear over one or several packed projections, with each row's own adapter added."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.config import LORA_MODULES
from tenora_engine.model.inputs import Arena
from tenora_kernels import sgmv
from tenora_kernels.segments import AdapterSegments


class PackedLinear:
    """`y = x W^T + b`; `modules` name the slices of y, `widths` wide, that adapters may change."""

    def __init__(
        self,
        weight: Tensor,  # [out, in]
        bias: Tensor | None,  # [out]
        modules: tuple[str, ...] = (),
        widths: tuple[int, ...] = (),
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._modules = tuple(LORA_MODULES.index(module) for module in modules)
        self._widths = widths

    def __call__(self, x: Tensor) -> Tensor:
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
