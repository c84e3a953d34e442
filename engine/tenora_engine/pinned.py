"""Page-locked memory of the host, which a GPU copies from and to beside its steps."""

from __future__ import annotations

import threading
import weakref
from bisect import insort
from collections import deque

import torch
from torch import Tensor

from tenora_engine.errors import MemoryBudgetError


def allocate_pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Host memory of exactly this size, page-locked until the tensor goes, for copies to and from a
    CUDA device beside its steps: torch's own allocator
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
            f"error {status}); reduce host_adapter_memory or host_kv_memory, or raise the "
            "process's limit of locked memory"
        )
    weakref.finalize(tensor, driver.cudaHostUnregister, address).atexit = False
    return tensor


class PinnedSlab:
    """One piece of page-locked memory, taken at the start, in which tensors of any number of pages
    lie: locking memory while steps run takes the driver's locks, and launches wait for them. Safe
    in threads."""

    def __init__(
        self,
        num_bytes: int,
        page_elements: int,
        dtype: torch.dtype,
    ) -> None:
        """Raises MemoryBudgetError when so much cannot be locked."""
        num_pages = num_bytes // (page_elements * dtype.itemsize)
        self._memory = allocate_pinned((num_pages, page_elements), dtype)
        self._free = [(0, num_pages)] if num_pages else []  # (first page, pages), by first page
        self._returned: deque[tuple[int, int]] = deque()  # by finalizers, which may take no lock
        self._lock = threading.Lock()

    @property
    def free_pages(self) -> int:
        with self._lock:
            self._merge_returned()
            return sum(count for _, count in self._free)

    def take(self, pages: Tensor) -> Tensor | None:  # [num_pages, page_elements]
        """A copy of the pages in the slab, whose room is free again once nobody has the tensor;
        None: there is no run of so many."""
        count = pages.shape[0]
        first = self._reserve(count)
        if first is None:
            return None
        own = self._memory[first : first + count]
        weakref.finalize(own, self._returned.append, (first, count)).atexit = False
        return own.copy_(pages)

    def _reserve(self, count: int) -> int | None:
        """Of the shortest run that is long enough."""
        with self._lock:
            self._merge_returned()
            fitting = [(pages, first) for first, pages in self._free if pages >= count]
            if not fitting:
                return None
            pages, first = min(fitting)
            self._free.remove((first, pages))
            if pages > count:
                insort(self._free, (first + count, pages - count))
            return first

    def _merge_returned(self) -> None:
        while self._returned:
            insort(self._free, self._returned.popleft())
        merged: list[tuple[int, int]] = []
        for start, pages in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = merged[-1][0], merged[-1][1] + pages
            else:
                merged.append((start, pages))
        self._free = merged
