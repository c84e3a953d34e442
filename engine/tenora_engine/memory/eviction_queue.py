"""EvictionQueue: candidates for eviction in the order of their values; and what a cache tells of
its candidates."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Evictable(Protocol):
    """`ticket` belongs to the EvictionQueue: 0, or the number of the entry that counts."""

    ticket: int


class Paged(Evictable, Protocol):
    """It has pages, all of them in one partition."""

    @property
    def pages(self) -> Sequence[int]: ...


ItemT = TypeVar("ItemT", bound=Evictable)
ItemT_contra = TypeVar("ItemT_contra", bound=Evictable, contravariant=True)


class Candidates(Protocol[ItemT_contra]):
    """What a cache tells of what could be given up of it."""

    def offer(self, item: ItemT_contra) -> None:
        """It could be given up from now on, or is to be valued anew."""
        ...

    def withdraw(self, item: ItemT_contra) -> None:
        """It is needed, or gone."""
        ...


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

    def items(self) -> list[ItemT]:
        """All candidates, in no order."""
        return [item for _, ticket, item in self._heap if item.ticket == ticket]

    def in_order(self) -> Iterator[tuple[float, ItemT]]:
        """Candidates and their values, the least first; nothing may be offered or withdrawn
        meanwhile. The logarithm of what was given so far, for each: no walk over all of them."""
        heap = self._heap
        ahead = [(heap[0][0], heap[0][1], 0)] if heap else []
        while ahead:
            value, ticket, at = heapq.heappop(ahead)
            for below in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(ahead, (*heap[below][:2], below))
            item = heap[at][2]
            if item.ticket == ticket:
                yield value, item

    def least(self) -> tuple[float, ItemT]:
        """The candidate of least value, and its value. Raises IndexError when there is none."""
        while self._heap[0][2].ticket != self._heap[0][1]:
            heapq.heappop(self._heap)
        value, _, item = self._heap[0]
        return value, item
