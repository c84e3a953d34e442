"""Parked: waiting sequences that no walk along the queue comes to. Each lacks something that others
may not need (`Need`), and is woken when it may be had. Without this, requests that wait for a slow
load would stand before others that need nothing but their turn."""

from __future__ import annotations

import enum
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from tenora_engine.scheduling.class_queue import Waiting
from tenora_engine.sequence import Sequence


class Need(enum.Enum):
    """What a parked sequence waits for. For its adapter or its KV to come it is woken by that; for
    the others, of which there are so many, tenants take turns: the first of each is woken."""

    ADAPTER = "its adapter on its way, or not drained"
    KV = "its kept KV on its way"
    SLOT = "an adapter slot"
    COPY = "a place among the copies of large adapters"
    INSTALL = "one of a step's small adapters"
    FETCH = "a place among the fetches of KV"


TURNS = frozenset({Need.SLOT, Need.COPY, Need.INSTALL, Need.FETCH})


class Parked:
    """Parked sequences by what they need, and by the digest of their adapter. `add` and `take`
    bracket the time in which one is parked. All methods are O(log n), or O(what they return)."""

    def __init__(self) -> None:
        self.by_tenant: Counter[str] = Counter()
        self._waiting: dict[Sequence, tuple[Waiting, Need]] = {}
        self._by_digest: dict[str, dict[Sequence, None]] = {}
        self._counts: Counter[Need] = Counter()
        # By tenant, least first; among the entries are such as are not parked for it any more.
        self._turns: dict[Need, dict[str, list[Waiting]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        """In no particular order."""
        for waiting, _ in self._waiting.values():
            yield waiting

    def waits_for(self, need: Need) -> bool:
        """Whether one waits for it."""
        return self._counts[need] > 0

    def is_for(self, sequence: Sequence, need: Need) -> bool:
        """Whether it is parked and waits for that."""
        return sequence in self._waiting and self._waiting[sequence][1] is need

    def add(self, waiting: Waiting, need: Need) -> None:
        """Park a sequence, with its place in line."""
        sequence = waiting.sequence
        key, adapter = sequence.request.tenant.key, sequence.request.adapter
        self._waiting[sequence] = waiting, need
        self._counts[need] += 1
        self.by_tenant[key] += 1
        if adapter is not None:
            self._by_digest.setdefault(adapter.digest, {})[sequence] = None
        if need in TURNS:
            heapq.heappush(self._turns[need].setdefault(key, []), waiting)

    def take(self, sequence: Sequence) -> Waiting | None:
        """Its place in line, if it is parked; it is not any more."""
        if sequence not in self._waiting:
            return None
        waiting, need = self._waiting.pop(sequence)
        self._counts[need] -= 1
        key, adapter = sequence.request.tenant.key, sequence.request.adapter
        if adapter is not None:
            same = self._by_digest[adapter.digest]
            del same[sequence]
            if not same:
                del self._by_digest[adapter.digest]
        self.by_tenant[key] -= 1
        if not self.by_tenant[key]:
            del self.by_tenant[key]
            for heaps in self._turns.values():
                heaps.pop(key, None)
        return waiting

    def of(self, digest: str) -> Collection[Sequence]:
        """Those whose adapter it is."""
        return list(self._by_digest.get(digest, ()))

    def num_tenants(self, need: Need) -> int:
        """Count the tenants of which some wait for one of TURNS, or did a moment ago."""
        return len(self._turns[need])

    def firsts(self, need: Need, count: int = 1) -> list[Sequence]:
        """List the first of each tenant that wait for one of TURNS. O(tenants)."""
        firsts: list[Sequence] = []
        heaps = self._turns[need]
        for key, heap in list(heaps.items()):
            own: list[Waiting] = []
            while heap and len(own) < count:
                waiting = heapq.heappop(heap)
                is_again = bool(own) and own[-1] is waiting
                if not is_again and self._waiting.get(waiting.sequence) == (waiting, need):
                    own.append(waiting)
            if not own:
                del heaps[key]
            for waiting in own:
                heapq.heappush(heap, waiting)
                firsts.append(waiting.sequence)
        return firsts
