"""SimulatedCopier: copies of KV pages from the host that take virtual time, on the link that the
adapters come over as well."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from tenora_bench.cache.loader import Link
from tenora_engine.step import CancelCopy, EndedCopy, FetchKV, MemoryOperation


class SimulatedCopier:
    """Of the operations on memory those that take time. What ends by `now_s` is delivered by
    `deliver(now_s)`."""

    def __init__(self, link: Link, page_bytes: int, clock: Callable[[], float]) -> None:
        self.on_ended: Callable[[], None] | None = None
        self._link = link
        self._page_bytes = page_bytes
        self._clock = clock
        self._flights: list[tuple[float, int, float]] = []  # a heap: end, number, duration
        self._cancelled: set[int] = set()
        self._ended: list[EndedCopy] = []

    @property
    def next_end_s(self) -> float | None:
        """When the next copy in flight ends."""
        return self._flights[0][0] if self._flights else None

    def apply(self, operations: Iterable[MemoryOperation]) -> None:
        """Begin copies, and cancel some: these keep their places on the link."""
        for operation in operations:
            if isinstance(operation, FetchKV):
                num_bytes = len(operation.pages) * self._page_bytes
                end_s = self._link.end_s(num_bytes, self._clock())
                flight = (end_s, operation.copy, self._link.load_s(num_bytes))
                heapq.heappush(self._flights, flight)
            elif isinstance(operation, CancelCopy):
                self._cancelled.add(operation.copy)

    def deliver(self, now_s: float) -> None:
        """End the copies that end by `now_s`."""
        while self._flights and self._flights[0][0] <= now_s:
            _, number, seconds = heapq.heappop(self._flights)
            if number in self._cancelled:
                self._cancelled.discard(number)
                continue
            self._ended.append(EndedCopy(number, seconds))
            if self.on_ended is not None:
                self.on_ended()

    def take_ended(self) -> list[EndedCopy]:
        ended, self._ended = self._ended, []
        return ended
