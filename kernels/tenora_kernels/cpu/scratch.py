"""Scratch: memory for gathered weights and keys, kept from layer to layer of one step."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Scratch:
    """One buffer per name, grown when needed and handed out as a view of the asked shape.

    A fresh 2 MB tensor costs about 1 ms in page faults on a small machine, seven times the gather
    that fills it, so the buffers live as long as the step's layout does.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous tensor; valid until the same name is taken again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.shape[0] < size:
            buffer = torch.empty(size, dtype=dtype)
            self._buffers[name] = buffer
        return buffer[:size].view(shape)

    def take_zeros(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As `take`, but 0 when first handed out; later takes find what the last user left."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.shape != shape:
            buffer = torch.zeros(shape, dtype=dtype)
            self._buffers[name] = buffer
        return buffer
