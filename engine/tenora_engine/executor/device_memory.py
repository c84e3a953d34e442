"""DeviceMemory: the tensors that stay from step to step: the arena, the adapter table, and evicted
KV on the host. It does what plans say of them, and knows no owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import MemoryOperationError
from tenora_engine.executor.adapter_slots import AdapterSlots, granule_offsets
from tenora_engine.executor.arena import Arena
from tenora_engine.executor.page_copier import MakeCopier, PageCopier, PageCopy, ThreadPageCopier
from tenora_engine.memory.adapter_arrivals import MAX_ARRIVALS
from tenora_engine.pace import Pace
from tenora_engine.pinned import allocate_pinned
from tenora_engine.step import (
    CancelCopy,
    ClearSlot,
    CopyAdapter,
    CopyKV,
    EndedCopy,
    FetchKV,
    InstallAdapter,
    MemoryOperation,
    StoreKV,
)
from tenora_kernels.segments import AdapterTable


def allocate_table(config: ResolvedConfig) -> AdapterTable:
    """An AdapterTable of `max_adapters` empty slots on the configured device."""
    return AdapterSlots.allocate(config).table


class DeviceMemory:
    """All that one executor keeps. Its methods are the step thread's; `on_copy_ended` is called
    from any."""

    def __init__(
        self,
        config: ResolvedConfig,
        copier: MakeCopier = ThreadPageCopier,
        pace: Pace | None = None,  # of the copies of adapters
    ) -> None:
        self.arena = Arena.allocate(config)
        self._slots = AdapterSlots.allocate(config)
        pool = self.arena.pool
        self._under_way: deque[tuple[torch.cuda.Event, PackedAdapter]] = deque()
        self.host_pages = allocate_host(config.num_host_pages, pool)
        self.on_copy_ended: Callable[[], None] | None = None
        self._staged: dict[str, PackedAdapter] = {}
        self._kv_copier = copier(pool)
        self._adapter_copier = copier(self.arena.adapters, MAX_ARRIVALS, pace)
        self._numbers: dict[PageCopy, int] = {}
        self._copies: dict[int, tuple[PageCopier, PageCopy]] = {}
        for each in self._copiers:
            each.on_complete = self._copy_ended

    @property
    def table(self) -> AdapterTable:
        """Where the adapters lie that slots hold."""
        return self._slots.table

    @property
    def _copiers(self) -> tuple[PageCopier, PageCopier]:
        return self._kv_copier, self._adapter_copier

    def stage(self, adapters: Iterable[PackedAdapter]) -> None:
        """See `Executor.stage`."""
        self._staged.update((adapter.digest, adapter) for adapter in adapters)

    def apply(self, operations: Iterable[MemoryOperation]) -> None:
        """In order. Raises MemoryOperationError at the first that cannot be done."""
        for operation in operations:
            try:
                self._apply(operation)
            except Exception as error:
                raise MemoryOperationError(
                    f"{type(operation).__name__} failed ({type(error).__name__}: {error}); the "
                    "content of the device's memory is no longer known. Restart the engine"
                ) from error
        self._staged.clear()

    def take_ended_copies(self) -> list[EndedCopy]:
        """See `Executor.take_ended_copies`."""
        ended = []
        for copier in self._copiers:
            for copy in copier.take_completed():
                number = self._numbers.pop(copy, None)
                if number is not None:
                    del self._copies[number]
                    ended.append(EndedCopy(number, copy.seconds, copy.failed))
        return ended

    def close(self) -> None:
        """See `Executor.close`."""
        for copier in self._copiers:
            copier.close()

    def _apply(self, operation: MemoryOperation) -> None:
        match operation:
            case StoreKV(page, host_page):
                self.host_pages[host_page].copy_(self.arena.pool[page], non_blocking=True)
            case CopyKV(page, target):
                self.arena.pool[target].copy_(self.arena.pool[page], non_blocking=True)
            case InstallAdapter(digest, slot, pages, is_copied):
                packed = self._staged[digest]
                if not is_copied:
                    self._copy_pages(packed, pages)
                offsets = granule_offsets(packed, pages, self.arena.adapters.shape[1])
                self._slots.write(slot, packed, offsets)
            case ClearSlot(slot):
                self._slots.clear(slot)
            case FetchKV(number, host_pages, pages):
                copy = PageCopy(self.host_pages, host_pages, pages)
                self._start(self._kv_copier, number, copy)
            case CopyAdapter(number, digest, pages):
                source = self._staged[digest].pages
                copy = PageCopy(source, range(source.shape[0]), pages)
                self._start(self._adapter_copier, number, copy)
            case CancelCopy(number):
                self._cancel(number)

    def _start(self, copier: PageCopier, number: int, copy: PageCopy) -> None:
        self._numbers[copy] = number
        self._copies[number] = copier, copy
        copier.start(copy)

    def _cancel(self, number: int) -> None:
        if number in self._copies:
            copier, copy = self._copies.pop(number)
            del self._numbers[copy]
            copier.cancel(copy)

    def _copy_ended(self) -> None:
        if self.on_copy_ended is not None:
            self.on_copy_ended()

    def _copy_pages(self, packed: PackedAdapter, pages: Sequence[int]) -> None:
        """Page by page, without a copy of all of them on the device. The host's memory is kept
        until that has been done: it is page-locked, and who takes it next waits for nobody."""
        while self._under_way and _has_passed(self._under_way[0][0]):
            self._under_way.popleft()
        for source, target in zip(packed.pages, pages, strict=True):
            self.arena.adapters[target].copy_(source, non_blocking=True)
        if self.arena.adapters.is_cuda:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch's own
            copied.record()
            self._under_way.append((copied, packed))


def _has_passed(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call] # torch's own


def allocate_host(num_pages: int, pool: Tensor) -> Tensor:  # [num_pages, page_elements]
    """Page-locked beside a GPU. The CPU's memory is taken page by page, when first written."""
    shape = (num_pages, pool.shape[1])
    if pool.is_cuda:
        return allocate_pinned(shape, pool.dtype)
    return torch.empty(shape, dtype=pool.dtype)
