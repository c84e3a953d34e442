"""Which implementation of the ops serves a device, chosen once per device type; says so to
`tenora doctor`. Triton is imported only when a CUDA device (or a test) asks for it."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tenora_kernels.compiled.load import NotLoadedError, load_extension
from tenora_kernels.compiled.variants import NATIVE, chosen
from tenora_kernels.segments import AdapterSegments, AdapterTable, AttentionLayout, KVLayout


class UnsupportedDeviceError(RuntimeError):
    """No implementation of the ops runs on this device here; the message says what to install."""


class Sgmv(Protocol):
    def __call__(
        self,
        y: Tensor,
        x: Tensor,
        pool: Tensor,
        table: AdapterTable,
        segments: AdapterSegments,
        layer: int,
        modules: Sequence[int],
        widths: Sequence[int],
    ) -> None: ...


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        pool: Tensor,
        kv: KVLayout,
        layer: int,
        layout: AttentionLayout,
        scale: float,
        out: Tensor,
    ) -> None: ...


class KVWrite(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        pool: Tensor,
        kv: KVLayout,
        layer: int,
        slots: Tensor,
    ) -> None: ...


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class AddRmsNorm(Protocol):
    def __call__(
        self, x: Tensor, weight: Tensor, eps: float, residual: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor) -> Tensor: ...


class FixedLinear(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...


@dataclass(frozen=True)
class Implementation:
    """Every op, as one kind of hardware runs it. Inputs have been checked by the public op."""

    name: str
    sgmv: Sgmv
    paged_attention: PagedAttention
    kv_write: KVWrite
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    silu_mul: SiluMul
    fixed_linear: FixedLinear
    sgmv_checks: bool = False  # sgmv checks its inputs itself, before it changes any


def implementation(device: torch.device) -> Implementation:
    """The implementation for a device. Raises UnsupportedDeviceError when there is none."""
    return _chosen(device.type)


@functools.cache
def _chosen(device_type: str) -> Implementation:
    if device_type == "cpu":
        try:
            return compiled_implementation()
        except NotLoadedError:
            return torch_implementation()  # `describe` says why
    if device_type == "cuda":
        return triton_implementation()
    raise UnsupportedDeviceError(f"no kernels for device {device_type!r}; use cpu or cuda")


@functools.cache
def torch_implementation() -> Implementation:
    """Plain torch, for the CPU."""
    from tenora_kernels.cpu import fixed_linear, kv_write, norms, paged_attention, sgmv

    return Implementation(
        name="torch",
        sgmv=sgmv.sgmv,
        paged_attention=paged_attention.paged_attention,
        kv_write=kv_write.kv_write,
        rms_norm=norms.rms_norm,
        add_rms_norm=norms.add_rms_norm,
        silu_mul=norms.silu_mul,
        fixed_linear=fixed_linear.fixed_linear,
    )


@functools.cache
def compiled_implementation() -> Implementation:
    """C++ for the CPU.

    Raises NotLoadedError when the library has not been built, or TENORA_KERNELS=torch, and
    UnknownKernelsError when that names nothing.
    """
    from tenora_kernels.compiled import kv_write, norms, paged_attention, sgmv
    from tenora_kernels.cpu import fixed_linear

    load_extension()
    return Implementation(
        name="compiled",
        sgmv=sgmv.sgmv,
        paged_attention=paged_attention.paged_attention,
        kv_write=kv_write.kv_write,
        rms_norm=norms.rms_norm,
        add_rms_norm=norms.add_rms_norm,
        silu_mul=norms.silu_mul,
        fixed_linear=fixed_linear.fixed_linear,
        sgmv_checks=True,
    )


def has_compiled_ops() -> bool:
    """Whether the compiled library serves the CPU here. Raises UnknownKernelsError."""
    return why_not_compiled() is None


def why_not_compiled() -> str | None:
    """Why plain torch, several times slower, serves the CPU; None where the compiled library does.
    Raises UnknownKernelsError."""
    try:
        load_extension()
    except NotLoadedError as reason:
        return str(reason)
    return None


@functools.cache
def triton_implementation() -> Implementation:
    """Triton, for CUDA devices, or for CPU tensors under TRITON_INTERPRET=1 in tests.

    Raises UnsupportedDeviceError when triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedDeviceError("a CUDA device needs triton: pip install 'triton>=3.6'")
    from tenora_kernels.gpu import fixed_linear, kv_write, norms, paged_attention, sgmv

    return Implementation(
        name="triton",
        sgmv=sgmv.sgmv,
        paged_attention=paged_attention.paged_attention,
        kv_write=kv_write.kv_write,
        rms_norm=norms.rms_norm,
        add_rms_norm=norms.add_rms_norm,
        silu_mul=norms.silu_mul,
        fixed_linear=fixed_linear.fixed_linear,
    )


def describe() -> dict[str, str]:
    """What runs where on this machine, for people: `{"cpu": ..., "cuda": ...}`."""
    cpu = _describe_cpu()
    if not torch.cuda.is_available():
        return {"cpu": cpu, "cuda": "no CUDA device"}
    if importlib.util.find_spec("triton") is None:
        return {"cpu": cpu, "cuda": "CUDA device found, triton is not installed"}
    import triton

    device = torch.cuda.get_device_name()
    return {"cpu": cpu, "cuda": f"triton {triton.__version__} on {device}"}


def _describe_cpu() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    reason = why_not_compiled()
    if reason is None:
        variant = chosen() or NATIVE
        name, note = f"compiled ({variant.name})", ""
    else:
        name, note = torch_implementation().name, f"; compiled kernels: {reason}"
    return f"{name}, torch {torch.__version__} ({capability}){note}"
