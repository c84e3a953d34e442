"""AdapterArrivals: the large adapters that are being copied into the arena beside the steps. Their
pages and slots are reserved until all of their bytes are there; whose turn it is and what had to go
for them, others decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_cache import AdapterCache, Key, ResidentAdapter
from tenora_engine.memory.page_copier import PageCopier, PageCopy

AT_ONCE_BYTES = 16 * 1024**2
"""What is no larger is copied within a step, which takes 2.5 ms on a CPU (6 GB/s) and 0.3 ms of a
GPU's link: beside the steps it would be there a step later."""

MAX_ARRIVALS = 4
"""In flight at one time, each in a thread of its own, so that none waits for a larger one."""

MAX_TENANT_ARRIVALS = 2
"""Of them, for one tenant."""


@dataclass(eq=False)
class Arrival:
    """`adapter` has its pages and its slot, but no reader finds it before it is there whole."""

    adapter: ResidentAdapter
    packed: PackedAdapter
    tenant_key: str  # for whose sequence it comes
    copy: PageCopy


class AdapterArrivals:
    """Copies in flight, at most MAX_ARRIVALS, each of an adapter that a waiting sequence needs.

    `gone(adapter)` gives back the pages and the slot of one that is cancelled.
    """

    def __init__(
        self,
        cache: AdapterCache,
        copier: PageCopier,
        at_once_bytes: float,
        gone: Callable[[ResidentAdapter], None],
    ) -> None:
        self.copier = copier
        self._cache = cache
        self._at_once_bytes = at_once_bytes
        self._gone = gone
        self._flights: dict[PageCopy, Arrival] = {}
        self._started = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Arrival]:
        yield from self._flights.values()

    def counters(self) -> dict[str, float]:
        return {"adapter_copies": self._started, "adapter_copies_cancelled": self._cancelled}

    def is_coming(self, key: Key) -> bool:
        return any(_key(arrival) == key for arrival in self)

    def takes_steps(self, packed: PackedAdapter) -> bool:
        """Whether it is too large to be copied within a step."""
        return packed.pages.nbytes > self._at_once_bytes

    def is_full(self, tenant_key: str) -> bool:
        own = sum(arrival.tenant_key == tenant_key for arrival in self)
        return own >= MAX_TENANT_ARRIVALS or len(self) >= MAX_ARRIVALS

    def start(self, adapter: ResidentAdapter, packed: PackedAdapter, tenant_key: str) -> None:
        """Copy into the pages that are reserved for it."""
        copy = PageCopy(packed.pages, range(packed.num_pages), adapter.pages)
        self._flights[copy] = Arrival(adapter, packed, tenant_key, copy)
        self._started += 1
        self.copier.start(copy)

    def take_completed(self) -> list[tuple[str, bool]]:
        """Make resident what is there. Returns what has ended, as (digest, whether it is)."""
        ended: list[tuple[str, bool]] = []
        if not self._flights:
            return ended
        for copy in self.copier.take_completed():
            arrival = self._flights.get(copy)
            if arrival is None:
                continue
            ended.append((arrival.adapter.digest, not copy.failed))
            if copy.failed:
                self._cancel(arrival)
                continue
            del self._flights[copy]
            arrival.adapter.load_ms += copy.seconds * 1000
            self._cache.complete(arrival.adapter, arrival.packed)
        return ended

    def cancel_unwanted(self, key: Key) -> None:
        """A sequence that needed the adapter waits no more: perhaps nobody does."""
        if self._flights and not self._cache.is_wanted(key[1], key[0]):
            self.cancel_last(lambda arrival: _key(arrival) == key)

    def cancel_last(self, could: Callable[[Arrival], bool]) -> bool:
        """Cancel, of those that `could` be, the one that began last; its pages are free then.
        Returns whether there was one."""
        last = next(
            (arrival for arrival in reversed(self._flights.values()) if could(arrival)), None
        )
        if last is None:
            return False
        self._cancel(last)
        return True

    def _cancel(self, arrival: Arrival) -> None:
        del self._flights[arrival.copy]
        self.copier.cancel(arrival.copy)
        self._cancelled += 1
        self._gone(arrival.adapter)


def _key(arrival: Arrival) -> Key:
    return arrival.adapter.scope, arrival.adapter.digest
