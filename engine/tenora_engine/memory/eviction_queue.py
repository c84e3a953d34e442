"""EvictionQueue: candidates for eviction in the order of their values."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar


class Evictable(Protocol):
    """`ticket` belongs to the EvictionQueue: 0, or the number of the entry that counts."""

    ticket: int


ItemT = TypeVar("ItemT", bound=Evictable)


class EvictionQueue(Generic[ItemT]):
    """Candidates by value: a heap whose outdated entries are dropped when they surface, and swept
    when they outnumber the others, so its size is bounded by that of the candidates."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ItemT]] = []
        self._next_ticket = 1
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def offer(self, item: ItemT, value: float) -> None:
        """Add a candidate, or value it anew."""
        if not item.ticket:
            self._size += 1
        item.ticket = self._next_ticket
        self._next_ticket += 1
        heapq.heappush(self._heap, (value, item.ticket, item))
        if len(self._heap) > 2 * self._size + 64:
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def withdraw(self, item: ItemT) -> None:
        """It is no candidate any more."""
        if item.ticket:
            item.ticket = 0
            self._size -= 1

    def pop(self) -> ItemT:
        """The candidate of least value, taken out. Raises IndexError when there is none."""
        while True:
            _, ticket, item = heapq.heappop(self._heap)
            if item.ticket == ticket:
                self.withdraw(item)
                return item
