"""Staging: what a step needs on the device goes there in one copy, from memory of the host that is
page-locked, so that nobody waits for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; Triton compiles a kernel anew for a pointer that is aligned otherwise


class Staging:
    """`begin`, then `put` or `write` for each tensor, then `send`. Tensors of the same sizes in the
    same order lie at the same addresses in every step: a captured graph finds them there.

    On a device that is no GPU (tests) the same, without page-locking.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._host = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)
        self._bytes = self._host.numpy()
        self._there = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        self._used = 0

    def begin(self) -> None:
        """Wait until the last step's copy has been made; its tensors are no longer valid."""
        if self._sent is not None:
            self._sent.synchronize()
        self._used = 0

    def write(self, tensor: Tensor) -> int | None:
        """Where a contiguous tensor of the host begins in what is sent, in bytes; None: there is no
        room for it."""
        start = self._used
        end = start + tensor.nbytes
        if end > self._bytes.shape[0]:
            return None
        self._used = end + -end % _ALIGNMENT
        self._bytes[start:end] = tensor.numpy().reshape(-1).view(np.uint8)
        return start

    def put(self, tensor: Tensor) -> Tensor:
        """The same, and where it will lie on the device. What finds no room is copied at once, by
        itself."""
        start = self.write(tensor)
        if start is None:
            return tensor.to(self._there.device)
        bytes_there = self._there[start : start + tensor.nbytes]
        return bytes_there.view(tensor.dtype).view(tensor.shape)

    def send(self) -> None:
        """Start the copy; what is launched from here on finds the tensors."""
        used = min(self._used, self._bytes.shape[0])
        self._there[:used].copy_(self._host[:used], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
