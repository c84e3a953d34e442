"""MemoryOperations: what the caches decide, written down for the executor. They know pages and
slots by number; who carries it out has the tensors (`executor.device_memory`)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.step import (
    CancelCopy,
    ClearSlot,
    CopyAdapter,
    CopyKV,
    FetchKV,
    InstallAdapter,
    MemoryOperation,
    StoreKV,
)


class MemoryOperations:
    """In the order in which they are decided, until a plan takes them. What a later one writes may
    be what an earlier one reads."""

    def __init__(self) -> None:
        self._written: list[MemoryOperation] = []
        self._staged: dict[str, PackedAdapter] = {}
        self._num_copies = 0

    def __len__(self) -> int:
        return len(self._written)

    def take(self) -> list[MemoryOperation]:
        """Those since the last time."""
        written, self._written = self._written, []
        return written

    def take_staged(self) -> list[PackedAdapter]:
        """The adapters of which those taken last name the digests."""
        staged, self._staged = self._staged, {}
        return list(staged.values())

    def install(
        self, packed: PackedAdapter, slot: int, pages: Iterable[int], *, is_copied: bool = False
    ) -> None:
        """See `InstallAdapter`."""
        self._staged[packed.digest] = packed
        operation = InstallAdapter(packed.digest, slot, array("i", pages), is_copied)
        self._written.append(operation)

    def clear(self, slot: int) -> None:
        self._written.append(ClearSlot(slot))

    def store(self, page: int, host_page: int) -> None:
        self._written.append(StoreKV(page, host_page))

    def copy_kv(self, page: int, target: int) -> None:
        self._written.append(CopyKV(page, target))

    def copy(self, packed: PackedAdapter, pages: Iterable[int]) -> int:
        """Begin a copy beside the steps; returns its number."""
        self._num_copies += 1
        self._staged[packed.digest] = packed
        self._written.append(CopyAdapter(self._num_copies, packed.digest, array("i", pages)))
        return self._num_copies

    def fetch(self, host_pages: Iterable[int], pages: Iterable[int]) -> int:
        """Begin a copy beside the steps; returns its number."""
        self._num_copies += 1
        self._written.append(FetchKV(self._num_copies, array("i", host_pages), array("i", pages)))
        return self._num_copies

    def cancel(self, copy: int) -> None:
        self._written.append(CancelCopy(copy))
