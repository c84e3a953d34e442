"""DeviceMemory: the tensors that stay from step to step: the arena, the adapter table, and evicted
KV on the host. It does what plans say of them, and knows no owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import LORA_MODULES, ResolvedConfig
from tenora_engine.errors import MemoryOperationError
from tenora_engine.executor.arena import Arena, allocate_pinned
from tenora_engine.executor.page_copier import MakeCopier, PageCopier, PageCopy, ThreadPageCopier
from tenora_engine.memory.adapter_arrivals import MAX_ARRIVALS
from tenora_engine.pace import Pace
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
from tenora_kernels.segments import AdapterTable, common_alignment


def allocate_table(config: ResolvedConfig) -> AdapterTable:
    """An AdapterTable of `max_adapters` empty slots on the configured device."""
    slots, layers = config.engine.max_adapters, config.model.num_layers
    device = config.engine.device

    def zeros(last: int, dtype: torch.dtype) -> Tensor:  # [slots, layers, last]
        return torch.zeros((slots, layers, last), dtype=dtype, device=device)

    modules = len(LORA_MODULES)
    sizes = [size for shape in config.model.modules.values() for size in shape]
    return AdapterTable(
        granule_offset=zeros(config.engine.max_rank, torch.int64),
        rank=zeros(modules, torch.int32),
        a_offset=zeros(modules, torch.int32),
        b_offset=zeros(modules, torch.int32),
        scale=zeros(modules, torch.float32),
        alignment=common_alignment([config.packed_page_elements, *sizes]),
    )


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
        self.table = allocate_table(config)
        pool = self.arena.pool
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
                    f"{type(operation).__name__} failed ({type(error).__name__}: {error}); what "
                    "lies in the device's memory is not known any more, start the engine again"
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
                packed, numbers = self._staged[digest], torch.tensor(pages, dtype=torch.int64)
                if not is_copied:
                    device = self.arena.adapters.device
                    there = packed.pages.to(device, non_blocking=True)
                    self.arena.adapters[numbers.to(device)] = there
                self._write_slot(slot, packed, numbers)
            case ClearSlot(slot):
                self.table.rank[slot] = 0
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

    def _write_slot(
        self,
        slot: int,
        packed: PackedAdapter,
        numbers: Tensor,  # [packed.num_pages] int64
    ) -> None:
        page_elements = self.arena.adapters.shape[1]
        present = packed.granule_page >= 0
        page = numbers[packed.granule_page.clamp(min=0).long()]  # [layers, rank]
        offset = torch.where(present, page * page_elements + packed.granule_start, 0)
        table = self.table
        table.granule_offset[slot, :, : packed.max_rank] = offset.to(table.granule_offset.device)
        for target, source in (
            (table.a_offset, packed.a_offset),
            (table.b_offset, packed.b_offset),
            (table.scale, packed.scale),
            (table.rank, packed.rank),
        ):
            target[slot] = source.to(target.device)


def allocate_host(num_pages: int, pool: Tensor) -> Tensor:  # [num_pages, page_elements]
    """Page-locked beside a GPU. The CPU's memory is taken page by page, when first written."""
    shape = (num_pages, pool.shape[1])
    if pool.is_cuda:
        return allocate_pinned(shape, pool.dtype)
    return torch.empty(shape, dtype=pool.dtype)
