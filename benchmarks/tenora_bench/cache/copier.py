"""SimulatedCopier: a PageCopier whose copies of KV pages take virtual time on the link from host
memory that the adapters come over as well."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from tenora_bench.cache.loader import Link
from tenora_engine.memory.page_copier import PageCopy


class SimulatedCopier:
    """See `tenora_engine.memory.page_copier.PageCopier`. What ends by `now_s` is delivered by
    `deliver(now_s)`."""

    def __init__(self, link: Link, page_bytes: int, clock: Callable[[], float]) -> None:
        self.on_complete: Callable[[], None] | None = None
        self._link = link
        self._page_bytes = page_bytes
        self._clock = clock
        self._flights: list[tuple[float, int, PageCopy]] = []  # a heap by the end
        self._completed: list[PageCopy] = []
        self._numbers = count()

    @property
    def next_end_s(self) -> float | None:
        """When the next copy in flight ends."""
        return self._flights[0][0] if self._flights else None

    def start(self, copy: PageCopy) -> None:
        num_bytes = len(copy.targets) * self._page_bytes
        end_s = self._link.end_s(num_bytes, self._clock())
        copy.seconds = self._link.load_s(num_bytes)
        heapq.heappush(self._flights, (end_s, next(self._numbers), copy))

    def cancel(self, copy: PageCopy) -> None:
        """It keeps its place on the link."""
        copy.cancelled = True

    def deliver(self, now_s: float) -> None:
        """Complete the copies that end by `now_s`."""
        while self._flights and self._flights[0][0] <= now_s:
            copy = heapq.heappop(self._flights)[2]
            if copy.cancelled:
                continue
            self._completed.append(copy)
            if self.on_complete is not None:
                self.on_complete()

    def take_completed(self) -> list[PageCopy]:
        completed, self._completed = self._completed, []
        return completed

    def close(self) -> None:
        self._flights.clear()
