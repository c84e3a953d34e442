"""AdapterArrivals: the large adapters that are being copied into the arena beside the steps. Their
pages and slots are reserved until all of their bytes are there; whose turn it is and what had to go
for them, others decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_cache import AdapterCache, Key, ResidentAdapter
from tenora_engine.memory.allocator import PageAllocator
from tenora_engine.memory.costs import CostModel
from tenora_engine.memory.operations import MemoryOperations
from tenora_engine.request import Tenant
from tenora_engine.step import EndedCopy

AT_ONCE_BYTES = 16 * 1024**2
"""What is no larger is copied within a step, which takes 2.5 ms on a CPU (6 GB/s) and 0.3 ms of a
GPU's link: beside the steps it would be there a step later."""

MAX_ARRIVALS = 4
"""In flight at one time, each in a thread of its own, so that none waits for a larger one."""

MAX_TENANT_ARRIVALS = 2
"""Of them, for one tenant; a second one only while half are free, so that a few tenants' large
adapters do not keep the next tenant's waiting."""


@dataclass(eq=False)
class Arrival:
    """`adapter` has its pages and its slot, but no reader finds it before it is there whole."""

    adapter: ResidentAdapter
    packed: PackedAdapter
    tenant_key: str  # for whose sequence it comes
    copy: int  # its number


class AdapterArrivals:
    """Copies in flight, at most MAX_ARRIVALS, each of an adapter that a waiting sequence needs."""

    def __init__(
        self,
        cache: AdapterCache,
        allocator: PageAllocator,
        operations: MemoryOperations,
        costs: CostModel,
        at_once_bytes: float,
    ) -> None:
        self._operations = operations
        self._costs = costs
        self._cache = cache
        self._allocator = allocator
        self._at_once_bytes = at_once_bytes
        self.in_flight: dict[int, Arrival] = {}
        self.on_cancelled: Callable[[str], None] = lambda digest: None  # is told the digest
        self._started = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self.in_flight)

    def __iter__(self) -> Iterator[Arrival]:
        """Those that began first come first."""
        yield from self.in_flight.values()

    def counters(self) -> dict[str, float]:
        return {"adapter_copies": self._started, "adapter_copies_cancelled": self._cancelled}

    def is_large(self, packed: PackedAdapter) -> bool:
        """Whether it is too large to be copied within a step."""
        return packed.pages.nbytes > self._at_once_bytes

    def is_full(self, tenant_key: str) -> bool:
        """Whether no more may be in flight for the tenant, beside what is kept for it."""
        own = sum(arrival.tenant_key == tenant_key for arrival in self)
        own += self._cache.num_kept(tenant_key)
        most = MAX_ARRIVALS // 2 if own else MAX_ARRIVALS
        return own >= MAX_TENANT_ARRIVALS or len(self) >= most

    def start(
        self, packed: PackedAdapter, tenant: Tenant, load_ms: float, now_s: float
    ) -> ResidentAdapter:
        """Reserve room for an adapter, which there must be, and begin to copy it there."""
        adapter = self._allocator.reserve(packed, tenant.namespace, load_ms, now_s)
        copy = self._operations.copy(packed, adapter.pages)
        self.in_flight[copy] = Arrival(adapter, packed, tenant.key, copy)
        self._started += 1
        return adapter

    def take(self, copies: Iterable[EndedCopy]) -> list[tuple[str, bool]]:
        """Make resident what is there. Returns what has ended, as (digest, whether it is)."""
        ended: list[tuple[str, bool]] = []
        for copy in copies:
            arrival = self.in_flight.get(copy.copy)
            if arrival is None:
                continue
            ended.append((arrival.adapter.digest, not copy.failed))
            if copy.failed:
                self.cancel(arrival)
                continue
            del self.in_flight[copy.copy]
            arrival.adapter.load_ms += copy.seconds * 1000
            self._costs.observe_load(arrival.packed.pages.nbytes, copy.seconds, "host")
            self._cache.complete(arrival.adapter, arrival.packed, arrival.tenant_key)
        return ended

    def cancel_unwanted(self, key: Key) -> None:
        """A sequence that needed the adapter waits no more: perhaps nobody does."""
        if self._cache.is_wanted(key[1], key[0]):
            return
        for arrival in self.in_flight.values():
            if (arrival.adapter.scope, arrival.adapter.digest) == key:
                self.cancel(arrival)
                return

    def cancel(self, arrival: Arrival) -> None:
        """Its pages and its slot are free then."""
        del self.in_flight[arrival.copy]
        self._operations.cancel(arrival.copy)
        self._cancelled += 1
        self._allocator.release_reserved(arrival.adapter)
        self.on_cancelled(arrival.adapter.digest)
