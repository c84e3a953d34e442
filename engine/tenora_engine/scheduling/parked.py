"""Parked: waiting sequences that no walk along the queue comes to. Each lacks its adapter, or a
slot for it, and is woken when it may be had. Without this, requests that wait for a slow load would
stand before others that need nothing but their turn."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator

from tenora_engine.scheduling.class_queue import Waiting
from tenora_engine.sequence import Sequence


class Parked:
    """Parked sequences by the digest of their adapter, those that wait for a slot also by tenant.
    `add` and `take` bracket the time in which one is parked. All methods are O(log n), or O(what
    they return)."""

    def __init__(self) -> None:
        self.by_tenant: Counter[str] = Counter()
        self._waiting: dict[Sequence, Waiting] = {}
        self._by_digest: dict[str, dict[Sequence, None]] = {}
        self._slotless: dict[Sequence, Waiting] = {}  # of them, those that wait for a slot
        # By tenant, least first; among the entries are such as are not parked for a slot any more.
        self._for_slots: dict[str, list[Waiting]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        """In no particular order."""
        yield from self._waiting.values()

    @property
    def waits_for_slots(self) -> bool:
        """Whether one waits for a slot."""
        return bool(self._slotless)

    def is_for_slot(self, sequence: Sequence) -> bool:
        """Whether it is parked and waits for a slot."""
        return sequence in self._slotless

    def add(self, waiting: Waiting, *, for_slot: bool) -> None:
        """Park a sequence, which must have an adapter, with its place in line."""
        sequence = waiting.sequence
        tenant, adapter = sequence.request.tenant, sequence.request.adapter
        assert adapter is not None
        self._waiting[sequence] = waiting
        self._by_digest.setdefault(adapter.digest, {})[sequence] = None
        self.by_tenant[tenant.key] += 1
        if for_slot:
            self._slotless[sequence] = waiting
            heapq.heappush(self._for_slots.setdefault(tenant.key, []), waiting)

    def take(self, sequence: Sequence) -> Waiting | None:
        """Its place in line, if it is parked; it is not any more."""
        waiting = self._waiting.pop(sequence, None)
        if waiting is None:
            return None
        self._slotless.pop(sequence, None)
        tenant, adapter = sequence.request.tenant, sequence.request.adapter
        assert adapter is not None
        same = self._by_digest[adapter.digest]
        del same[sequence]
        if not same:
            del self._by_digest[adapter.digest]
        self.by_tenant[tenant.key] -= 1
        if not self.by_tenant[tenant.key]:
            del self.by_tenant[tenant.key]
            self._for_slots.pop(tenant.key, None)
        return waiting

    def of(self, digest: str) -> Collection[Sequence]:
        """Those whose adapter it is."""
        return list(self._by_digest.get(digest, ()))

    def first_for_slots(self) -> list[Sequence]:
        """Of each tenant the first that waits for a slot. O(tenants)."""
        firsts = []
        for key, heap in list(self._for_slots.items()):
            while heap and self._slotless.get(heap[0].sequence) is not heap[0]:
                heapq.heappop(heap)
            if heap:
                firsts.append(heap[0].sequence)
            else:
                del self._for_slots[key]
        return firsts
