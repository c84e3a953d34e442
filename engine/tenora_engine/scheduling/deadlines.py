"""Deadlines: when it becomes plain that a waiting sequence cannot have its first token in time. It
changes nothing about them."""

from __future__ import annotations

import heapq
import math
from itertools import count

from tenora_engine.memory.costs import CostModel
from tenora_engine.scheduling.classes import LOWEST_CLASS
from tenora_engine.sequence import Sequence, SequenceState

_SPARE_ENTRIES = 64


class Deadlines:
    """Sequences that wait for the first time, of plans that refuse or relegate what is late, by the
    latest time at which they could start. Among the entries are such as wait no more, but never the
    first, and never more of them than of the others and a few."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._heap: list[tuple[float, int, Sequence]] = []
        self._numbers = count()
        self._pruned_to = 0

    @property
    def next_s(self) -> float:
        """Before this time none is missed; infinite where none can be."""
        while self._heap and not _is_kept(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def watch(self, sequence: Sequence) -> None:
        """It waits. O(log n)."""
        if not _is_kept(sequence):
            return
        if len(self._heap) > 2 * self._pruned_to + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if _is_kept(entry[2])]
            heapq.heapify(self._heap)
            self._pruned_to = len(self._heap)
        entry = (self._latest_start_s(sequence), next(self._numbers), sequence)
        heapq.heappush(self._heap, entry)

    def take_missed(self, now_s: float) -> list[Sequence]:
        """Those whose first token would be late if they started now; they are not watched any
        more."""
        missed = []
        while self.next_s < now_s:
            sequence = heapq.heappop(self._heap)[2]
            if self._latest_start_s(sequence) < now_s:
                missed.append(sequence)
            else:  # a token takes less than when it came
                self.watch(sequence)
        return missed

    def _latest_start_s(self, sequence: Sequence) -> float:
        ttft_ms = sequence.request.tenant.ttft_ms
        assert ttft_ms is not None
        return sequence.arrival_s + ttft_ms / 1000 - sequence.work * self._costs.token_s


def _is_kept(sequence: Sequence) -> bool:
    """Whether something would become of it if it missed its deadline."""
    tenant = sequence.request.tenant
    if sequence.state is not SequenceState.WAITING or sequence.admitted_s is not None:
        return False
    if tenant.ttft_ms is None or tenant.late == "best_effort":
        return False
    return tenant.late == "refuse" or sequence.service_class != LOWEST_CLASS
