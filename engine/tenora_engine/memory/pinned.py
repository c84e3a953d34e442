"""Page-locked host memory, for copies to and from a CUDA device beside its steps, and what it
really takes. Knows nothing of what lies in it."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from tenora_engine.errors import MemoryBudgetError


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory of exactly this size, page-locked until the tensor goes: torch's own allocator
    would round it up to a power of two, up to twice as much. Raises MemoryBudgetError when the
    machine has not so much to lock."""
    tensor = torch.empty(shape, dtype=dtype)
    if not tensor.nbytes:
        return tensor
    driver, address = torch.cuda.cudart(), tensor.data_ptr()  # type: ignore[no-untyped-call]
    status = int(driver.cudaHostRegister(address, tensor.nbytes, 0))
    if status:
        raise MemoryBudgetError(
            f"{tensor.nbytes / 1024**2:.1f} MiB of host memory could not be page-locked (CUDA "
            f"error {status}); give the host tier of KV less, or let the process lock more"
        )
    weakref.finalize(tensor, driver.cudaHostUnregister, address).atexit = False
    return tensor


def pinned_bytes(num_bytes: int) -> int:
    """What torch's host allocator takes for `pin_memory()` of so many bytes: the next power of
    two."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0
