"""ArrivalTurns: who waits for a way to the device that is busy (copies of large adapters, a step's
small ones, KV from host memory), and when it is looked at again. What needs none of them never
waits here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tenora_engine.memory.manager import MemoryManager
from tenora_engine.scheduling.loads import AdapterLoads
from tenora_engine.scheduling.parked import Need
from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.sequence import Sequence

MAX_COLD_ADAPTERS = 4
"""Small adapters copied to the device in one step: the running sequences wait for the copies."""


class ArrivalTurns:
    """Parks what cannot be brought to the device yet, and wakes the first of each tenant when there
    may be a place. So a walk comes to a bounded number of them, however many wait."""

    def __init__(self, queue: WaitingQueue, memory: MemoryManager, loads: AdapterLoads) -> None:
        self._queue = queue
        self._memory = memory
        self._loads = loads
        self._is_looked_at = True  # what was woken last
        memory.fetches.on_ended = self._fetch_ended

    def begin_step(self) -> None:
        """Wake who may have a place in this step. O(1) while nobody waits for one, else
        O(tenants that do)."""
        if not self._is_looked_at:
            return
        self._is_looked_at = False
        parked = self._queue.parked
        woken = list(self._may_come())
        if parked.waits_for(Need.INSTALL):
            share = -(-MAX_COLD_ADAPTERS // max(parked.num_tenants(Need.INSTALL), 1))
            woken += parked.firsts(Need.INSTALL, share)
        for sequence in woken:
            self._queue.wake(sequence)

    def walked(self) -> None:
        """Note that what was woken has been looked at, or is not ahead of what has been."""
        self._is_looked_at = True

    @property
    def is_due(self) -> bool:
        """Whether the next step wakes one, though nothing runs or comes."""
        return next(self._may_come(), None) is not None

    def park_for_adapter(self, sequence: Sequence) -> None:
        """One whose adapter cannot be installed in this step."""
        request = sequence.request
        assert request.adapter is not None
        digest = request.adapter.digest
        loaded = self._loads.ready(digest)
        if self._loads.is_coming(digest) or self._memory.is_arriving(request):
            self._queue.park(sequence, Need.ADAPTER)
        elif loaded is not None and loaded.packed is not None:
            is_large = self._memory.arrivals.is_large(loaded.packed)
            self._queue.park(sequence, Need.COPY if is_large else Need.INSTALL)

    def park_for_kv(self, sequence: Sequence) -> None:
        """One that waits for its fetch, or for one of others to end."""
        is_coming = sequence.prefix.fetch is not None
        self._queue.park(sequence, Need.KV if is_coming else Need.FETCH)

    def _may_come(self) -> Iterator[Sequence]:
        memory, parked = self._memory, self._queue.parked
        ways: tuple[tuple[Need, Callable[[str], bool]], ...] = (
            (Need.COPY, memory.arrivals.is_full),
            (Need.FETCH, memory.fetches.is_full),
        )
        for need, is_full in ways:
            if parked.waits_for(need):
                for sequence in parked.firsts(need):
                    if not is_full(sequence.request.tenant.key):
                        yield sequence

    def _fetch_ended(self, waiters: Collection[Sequence]) -> None:
        for sequence in waiters:
            if self._queue.parked.is_for(sequence, Need.KV):
                self._queue.wake(sequence)
