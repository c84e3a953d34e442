"""A linear over one or several projections side by side, with each row's own adapter added: one
interface, and the forms in which its weights can be kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - what torch's own documentation calls it
from torch import Tensor

from tenora_engine.errors import ModelLoadError
from tenora_engine.model.inputs import Arena
from tenora_engine.model.modules import LORA_MODULES
from tenora_engine.model.spec import LayerSpec
from tenora_kernels import fixed_linear, sgmv
from tenora_kernels.backend import has_compiled_ops
from tenora_kernels.compiled.decoder import PackedProjection
from tenora_kernels.compiled.linear import pack_weight, packed_linear, quantise_weight
from tenora_kernels.segments import AdapterSegments

BLOCKING_ROWS = 16
"""The number of rows that oneDNN is told to block a weight for; it serves all others too. All
weights of SmolLM2-135M once, bf16, 2 threads: 1 / 16 / 64 rows take 8.4 / 11 / 27 ms, and
11.6 / 20 / 42 ms without blocking."""


@dataclass(frozen=True)
class LinearWeights:
    """Projections that share an input, their outputs side by side; `modules` name the slices,
    `widths` wide, that adapters may change."""

    weight: Tensor  # [sum(widths), in]
    bias: Tensor | None  # [sum(widths)]
    modules: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()


class Linear(ABC):
    """`y = x W^T + b`, and what adapters add to the slices of y. A subclass is a form of W."""

    def __init__(self, weights: LinearWeights) -> None:
        self._modules = tuple(LORA_MODULES.index(module) for module in weights.modules)
        self._widths = weights.widths

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The base's output: `[rows, in]` to `[rows, out]`."""

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


class PlainLinear(Linear):
    """The weight as the checkpoint has it, on any device."""

    def __init__(self, weights: LinearWeights) -> None:
        super().__init__(weights)
        self._weight, self._bias = weights.weight, weights.bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class FixedLinear(PlainLinear):
    """As PlainLinear, with a row's bits the same whatever rows are beside it."""

    def __call__(self, x: Tensor) -> Tensor:
        return fixed_linear(x, self._weight, self._bias)


class BlockedLinear(Linear):
    """In oneDNN's blocked order, which its matrix products then need not make anew each time."""

    def __init__(self, weights: LinearWeights) -> None:
        super().__init__(weights)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weights.weight, BLOCKING_ROWS)
        self._bias = weights.bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class PackedLinear(Linear):
    """In the panels of the compiled library."""

    _pack = staticmethod(pack_weight)

    def __init__(self, weights: LinearWeights) -> None:
        super().__init__(weights)
        self.projection = PackedProjection(self._pack(weights.weight), weights.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.projection.weight, self.projection.bias)


class Int8Linear(PackedLinear):
    """As PackedLinear, rounded to 8 bits with one scale an output."""

    _pack = staticmethod(quantise_weight)


FORMS: tuple[type[Linear], ...] = (
    PlainLinear,
    FixedLinear,
    BlockedLinear,
    PackedLinear,
    Int8Linear,
)


def choose_form(
    layer: LayerSpec,
    device: torch.device,
    dtype: torch.dtype,
    *,
    int8: bool,
    batch_invariant: bool = False,
) -> type[Linear]:
    """What all linears of a decoder of such layers are, and its LM head. Raises ModelLoadError
    where weights of 8 bits, or the same bits in any batch, are asked for and cannot be."""
    compiled = device.type == "cpu" and has_compiled_ops()
    if int8:
        _check_int8(layer, compiled)
        return Int8Linear
    if compiled and all(linear.in_features % 2 == 0 for linear in layer.linears.values()):
        return PackedLinear
    if batch_invariant and device.type != "cuda":
        raise ModelLoadError(
            "batch_invariant needs device cuda; on the CPU the compiled kernels always are "
            "batch invariant, but they are missing (tenora doctor says why). Leave it out"
        )
    if batch_invariant:
        return FixedLinear
    return BlockedLinear if _can_block(device, dtype) else PlainLinear


def _check_int8(layer: LayerSpec, compiled: bool) -> None:
    if not compiled:
        raise ModelLoadError(
            "weight_dtype int8 needs device cpu and the compiled kernels (tenora doctor says "
            "why they are missing); use weight_dtype auto"
        )
    for name, linear in layer.linears.items():
        if linear.in_features % 4:
            raise ModelLoadError(
                f"weight_dtype int8 needs linear layers with a multiple of 4 inputs, but {name} "
                f"has {linear.in_features}; use weight_dtype auto"
            )


def _can_block(device: torch.device, dtype: torch.dtype) -> bool:
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch's own
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
