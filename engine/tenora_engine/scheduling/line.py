"""TenantLine: what one tenant has waiting in one class, and in which order it goes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from tenora_engine.sequence import Sequence

AGE_S = 30.0
"""Whatever waits is due after this time, so that it is passed by nothing that is due later."""

LINE_WINDOW = 64
"""How far one walk looks past a tenant's blocked sequences."""

FIRST = float("-inf")
_numbers = count()


class Waiting(NamedTuple):
    """Sorts by what is due first, then by arrival."""

    due_s: float
    number: int
    entered_s: float
    sequence: Sequence


class TenantLine:
    """What has run before goes first (the latest preempted at the head), then the rest by
    `Sequence.due_s`, but as if due AGE_S after it came at the latest: nothing that comes later than
    that passes it.

    `counter` is the service charged to the tenant over its weight, `work` the sum of what waits.
    A *walk* goes along the line without taking anything out: `ahead` is then what it has not come
    to yet, and None otherwise.
    """

    __slots__ = (
        "_order", "_waiting", "ahead", "counter", "key", "round", "started", "turn", "weight",
        "work",
    )  # fmt: skip

    def __init__(self, key: str, weight: float) -> None:
        self.key = key
        self.weight = weight
        self.counter = 0.0
        self.started = 0.0  # the counter at its last start
        self.round = 0  # the ClassQueue's
        self.turn = 0
        self.work = 0.0
        self.ahead: deque[Waiting] | None = None
        self._order: list[Waiting] = []
        self._waiting: dict[Sequence, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    @property
    def next(self) -> Waiting | None:
        """The first in order; in a walk, the first that it has not come to."""
        ahead = self.ahead
        if ahead is None:
            return self._order[0] if self._order else None
        while ahead and ahead[0].sequence not in self._waiting:
            ahead.popleft()
        return ahead[0] if ahead else None

    @property
    def oldest_s(self) -> float:
        """When the first of those that wait came; there must be one."""
        return next(iter(self._waiting.values())).entered_s

    def push(self, sequence: Sequence, now_s: float) -> None:
        due_s = min(sequence.due_s, now_s + AGE_S)
        self._insert(Waiting(due_s, next(_numbers), now_s, sequence))

    def push_front(self, sequence: Sequence, now_s: float) -> None:
        self._insert(Waiting(FIRST, -next(_numbers), now_s, sequence))

    def remove(self, sequence: Sequence) -> None:
        """O(log n), and moving up what stands behind."""
        waiting = self._waiting.pop(sequence)
        del self._order[bisect_left(self._order, waiting)]
        self.work = self.work - sequence.work if self._order else 0.0  # without rounding

    def begin_walk(self) -> None:
        self.ahead = deque(self._order[:LINE_WINDOW])

    def end_walk(self) -> None:
        self.ahead = None

    def _insert(self, waiting: Waiting) -> None:
        insort(self._order, waiting)
        self._waiting[waiting.sequence] = waiting
        self.work += waiting.sequence.work
