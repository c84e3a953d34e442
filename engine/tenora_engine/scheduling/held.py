"""Held: sequences that wait for others of their own request, and are not in the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tenora_engine.scheduling.queue import WaitingQueue
from tenora_engine.scheduling.waits import Waits
from tenora_engine.sequence import Flight, Sequence


class Held:
    """`by_tenant` counts them by their tenants' keys."""

    def __init__(self, queue: WaitingQueue, waits: Waits) -> None:
        self._queue = queue
        self._waits = waits
        self.by_tenant: Counter[str] = Counter()

    def hold(self, flight: Flight, sequences: Collection[Sequence], now_s: float) -> None:
        """They begin to wait for others of the flight."""
        flight.held.extend(sequences)
        self.by_tenant[flight.request.tenant.key] += len(sequences)
        self._waits.hold(sequences, now_s)

    def take_out(self, flight: Flight, sequence: Sequence) -> None:
        """One that has ended."""
        flight.held.remove(sequence)
        self._count_down(flight, 1)

    def release(self, flight: Flight, now_s: float) -> Iterator[Sequence]:
        """All of the flight, to the head of the queue, in their order."""
        for sequence in sorted(flight.held, key=lambda sequence: -sequence.index):
            self._queue.push_front(sequence, now_s)
            self._waits.release(sequence, now_s)
            yield sequence
        self._count_down(flight, len(flight.held))
        flight.held.clear()

    def _count_down(self, flight: Flight, by: int) -> None:
        key = flight.request.tenant.key
        self.by_tenant[key] -= by
        if not self.by_tenant[key]:
            del self.by_tenant[key]
