"""The checks an op makes before a launch: one fact each, a named error that says what was given.

They run hundreds of times a step, so a message is only put together once a check has failed.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOAT_DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16))


class KernelInputError(ValueError):
    """A tensor handed to an op has the wrong shape, dtype, stride or device."""


def require(holds: bool, message: str, *values: object) -> None:
    """Raise KernelInputError(message.format(*values)) unless `holds`."""
    if not holds:
        raise KernelInputError(message.format(*values))


def require_shape(tensor: Tensor, name: str, *shape: int) -> None:
    """The tensor has this shape."""
    if tensor.shape != shape:
        raise KernelInputError(f"{name} has shape {list(tensor.shape)}, needs {list(shape)}")


def require_dims(tensor: Tensor, name: str, dims: int) -> None:
    """The tensor has this many axes."""
    if tensor.dim() != dims:
        raise KernelInputError(f"{name} has shape {list(tensor.shape)}, needs {dims} axes")


def require_float(tensor: Tensor, name: str) -> None:
    """The tensor has one of the dtypes a model computes in."""
    if tensor.dtype not in FLOAT_DTYPES:
        raise KernelInputError(f"{name} is {tensor.dtype}, needs a float dtype of 16 or 32 bits")


def require_like(tensor: Tensor, name: str, reference: Tensor, dtype: torch.dtype) -> None:
    """The tensor is on the reference's device and has this dtype."""
    if tensor.dtype is not dtype:
        raise KernelInputError(f"{name} is {tensor.dtype}, needs {dtype}")
    if tensor.device != reference.device:
        raise KernelInputError(f"{name} is on {tensor.device}, needs {reference.device}")


def require_kv_pool(pool: Tensor, q: Tensor) -> None:
    """The arena keeps KV in q's dtype, or on CUDA in fp8 (e4m3)."""
    fp8 = pool.dtype is torch.float8_e4m3fn and q.device.type == "cuda"
    require_like(pool, "pool", q, pool.dtype if fp8 else q.dtype)


def require_dense_rows(tensor: Tensor, name: str) -> None:
    """The neighbours of a row are neighbours in memory."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1 and tensor.numel():
        raise KernelInputError(f"{name} has strides {tensor.stride()}, needs a last stride of 1")


def require_contiguous(tensor: Tensor, name: str) -> None:
    """The tensor is dense in its own order."""
    if not tensor.is_contiguous():
        raise KernelInputError(f"{name} has strides {tensor.stride()}, needs to be contiguous")
