"""TenantLine: what one tenant has waiting in one class, and in which order it goes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from tenora_engine.sequence import Sequence

AGE_S = 30.0
"""What has waited this long is passed by nothing that came later from the same tenant."""

LINE_WINDOW = 64
"""How far one call of `in_turn` looks past a tenant's blocked sequences."""

FIRST = float("-inf")
_numbers = count()


class Waiting(NamedTuple):
    """Sorts by what is due first, then by arrival."""

    due_s: float
    number: int
    entered_s: float
    sequence: Sequence


class TenantLine:
    """What has run before goes first (the latest preempted at the head), then what has aged, by
    arrival, then the rest by `Sequence.due_s`.

    `counter` is the service charged to the tenant over its weight, `work` the sum of what waits,
    `due_s` that of the first in order, `oldest_s` when the first of those that wait came.
    """

    __slots__ = (
        "_arrivals",
        "_order",
        "counter",
        "due_s",
        "oldest_s",
        "round",
        "turn",
        "weight",
        "work",
    )

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.counter = 0.0
        self.round = 0  # the ClassQueue's
        self.turn = 0
        self.work = 0.0
        self.due_s = 0.0
        self.oldest_s = 0.0
        self._order: list[Waiting] = []
        self._arrivals: dict[Sequence, Waiting] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._arrivals

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._arrivals)

    def push(self, sequence: Sequence, now_s: float) -> None:
        self._insert(Waiting(sequence.due_s, next(_numbers), now_s, sequence))

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        self._insert(Waiting(FIRST, -next(_numbers), now_s, sequence))

    def remove(self, sequence: Sequence) -> None:
        """O(log n), and moving up what stands behind."""
        waiting = self._arrivals.pop(sequence)
        del self._order[bisect_left(self._order, waiting)]
        self.work -= sequence.work
        self._note_first()

    def in_turn(self, now_s: float) -> list[Waiting]:
        """The first LINE_WINDOW, in the order in which they go."""
        line: dict[Sequence, Waiting] = {}
        for waiting in self._order[:LINE_WINDOW]:
            if waiting.due_s != FIRST:
                break
            line[waiting.sequence] = waiting
        for waiting in self._arrivals.values():
            if len(line) >= LINE_WINDOW or now_s - waiting.entered_s <= AGE_S:
                break
            line.setdefault(waiting.sequence, waiting._replace(due_s=FIRST))
        for waiting in self._order:
            if len(line) >= LINE_WINDOW:
                break
            line.setdefault(waiting.sequence, waiting)
        return list(line.values())

    def _insert(self, waiting: Waiting) -> None:
        insort(self._order, waiting)
        self._arrivals[waiting.sequence] = waiting
        self.work += waiting.sequence.work
        self._note_first()

    def _note_first(self) -> None:
        if self._order:
            self.due_s = self._order[0].due_s
            self.oldest_s = next(iter(self._arrivals.values())).entered_s
        else:
            self.work = 0.0  # but for rounding
