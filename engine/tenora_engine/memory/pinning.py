"""Pinning: adapters that the operator wants to stay on the device: how much of the arena they may
take, and their way there without a request. Which they are, others say (`scheduling.pins`)."""

from __future__ import annotations

from collections.abc import Callable

from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.memory.adapter_arrivals import AdapterArrivals
from tenora_engine.memory.adapter_cache import AdapterCache, ResidentAdapter
from tenora_engine.memory.adapter_slots import AdapterSlots
from tenora_engine.memory.evictor import Evictor
from tenora_engine.memory.partitions import PIN_SHARE
from tenora_engine.memory.pool import IntegrityError
from tenora_engine.request import Tenant


class Pinning:
    """`place(namespace, packed)` makes room: pages, and the scope that the adapter is kept
    under."""

    def __init__(
        self,
        evictor: Evictor,
        adapters: AdapterCache,
        slots: AdapterSlots,
        arrivals: AdapterArrivals,
        clock: Callable[[], float],
        place: Callable[[str, PackedAdapter], tuple[list[int], str]],
    ) -> None:
        self._evictor = evictor
        self._partitions = evictor.partitions
        self._adapters = adapters
        self._slots = slots
        self._arrivals = arrivals
        self._clock = clock
        self._place = place

    @property
    def pinned_pages(self) -> int:
        return sum(partition.pinned_pages for partition in self._partitions)

    def pinnable_pages(self, namespace: str) -> int:
        """How many more could be."""
        return self._partitions.pinnable_pages(self._partitions.of(namespace, "adapter"))

    def refusal(self, namespace: str, num_pages: int, others: int = 0) -> str | None:
        """Why an adapter of so many pages cannot be pinned; None if it can. `others`: pins that are
        on their way."""
        partition = self._partitions.of(namespace, "adapter")
        most = self._partitions.pinnable_pages(partition)
        if num_pages > most:
            return (
                f"it takes {num_pages} pages; {self.pinned_pages} are pinned and {most} more can "
                f"be: at most {PIN_SHARE:.0%} of the arena, and no more than what tenants are "
                "guaranteed and the longest request in flight leave; unpin another first"
            )
        slots = self._slots.most(namespace) // 2
        pinned = others + sum(
            each.pinned and (not partition.hard or self._evictor.partition(each) is partition)
            for each in self._adapters.residents()
        )
        if pinned >= slots:
            return (
                f"{pinned} adapters are pinned, and at most {slots} can be, half of the slots for "
                "adapters; unpin another first"
            )
        return None

    def pin(self, resident: ResidentAdapter) -> None:
        if not resident.pinned:
            self._adapters.pin(resident, True)
            self._partitions.pin(self._evictor.partition(resident), len(resident.pages))

    def unpin(self, resident: ResidentAdapter) -> None:
        if resident.pinned:
            self._partitions.pin(self._evictor.partition(resident), -len(resident.pages))
            self._adapters.pin(resident, False)

    def try_install(self, tenant: Tenant, packed: PackedAdapter, load_ms: float) -> bool:
        """See to it that the adapter, which nobody may have asked for, comes to the device. False,
        and nothing changed, while there is no room."""
        namespace, count = tenant.namespace, packed.num_pages
        partition = self._partitions.of(namespace, "adapter")
        takes_steps = self._arrivals.takes_steps(packed)
        if takes_steps and self._arrivals.is_full(tenant.key):
            return False
        if count > self._partitions.available(partition, count, {}):
            return False
        if not self._slots.can_have(namespace):
            return False
        pages, scope = self._place(namespace, packed)
        now_s = self._clock()
        if takes_steps:
            coming = self._adapters.reserve(packed, pages, load_ms, now_s, namespace, scope)
            self._arrivals.start(coming, packed, tenant.key)
        else:
            coming = self._adapters.install(packed, pages, load_ms, now_s, namespace, scope)
        coming.unpaid_bytes = 0  # the operator's wish
        self._evictor.adapter_came(coming)
        return True

    def check(self) -> None:
        """Raises IntegrityError unless the counts of pinned pages are what is pinned."""
        counts = dict.fromkeys(self._partitions, 0)
        for resident in self._adapters.residents():
            if resident.pinned:
                counts[self._evictor.partition(resident)] += len(resident.pages)
        if any(partition.pinned_pages != count for partition, count in counts.items()):
            raise IntegrityError("the count of pinned pages is wrong")
