"""Standings: how many sequences each tenant has in each class, waiting and running, kept as they
come and go, and what its fair share of the places would be. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tenora_engine.scheduling.classes import CLASS_WEIGHTS
from tenora_engine.sequence import Sequence

Holder = tuple[str, str]
"""Of places: a service class and the key of a tenant in it."""

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_CLASSES = {name: number for number, name in enumerate(CLASS_WEIGHTS)}
_CLASS_WEIGHTS = np.array(list(CLASS_WEIGHTS.values()))


def holder_of(sequence: Sequence) -> Holder:
    return sequence.service_class, sequence.request.tenant.key


class Standings:
    """A row for each holder that has any; rows of those that have none any more are used again."""

    def __init__(self, number_of: Callable[[str], int] = lambda _: 0) -> None:
        """`number_of`: of a tenant, by which `tenants_running` counts it."""
        self.changes = 0
        self.entries = 0  # rows that were given to a holder
        self._rows: dict[Holder, int] = {}
        self._holders: list[Holder] = []  # by row
        self._unused: list[int] = []
        self._waiting = np.zeros(16, np.int64)
        self._running = np.zeros(16, np.int64)
        self._weights = np.ones(16)
        self._classes = np.zeros(16, np.int64)
        self._numbers = [0] * 16  # of the tenants
        self._number_of = number_of
        self.tenants_running: Int64s = np.zeros(16, np.int64)  # by number

    def wait(self, sequence: Sequence, more: int) -> None:
        """So many more (or fewer) of the sequence's holder wait."""
        self._add(self._waiting, sequence, more)

    def run(self, sequence: Sequence, more: int) -> None:
        """So many more (or fewer) of the sequence's holder run."""
        self._add(self._running, sequence, more)

    def holder(self, row: int) -> Holder:
        return self._holders[row]

    def row(self, holder: Holder) -> int | None:
        return self._rows.get(holder)

    def running_by_holder(self) -> dict[Holder, int]:
        """Of those that have any."""
        counts = {holder: int(self._running[row]) for holder, row in self._rows.items()}
        return {holder: count for holder, count in counts.items() if count}

    @property
    def waiting(self) -> Int64s:  # [num_rows]
        return self._waiting[: len(self._holders)]

    @property
    def running(self) -> Int64s:  # [num_rows]
        return self._running[: len(self._holders)]

    @property
    def weights(self) -> Float64s:  # [num_rows], of the tenants
        return self._weights[: len(self._holders)]

    @property
    def classes(self) -> Int64s:  # [num_rows], in the order of CLASS_WEIGHTS
        return self._classes[: len(self._holders)]

    def _add(self, counts: Int64s, sequence: Sequence, more: int) -> None:
        self.changes += 1
        holder = holder_of(sequence)
        row = self._rows.get(holder)
        if row is None:
            is_running = counts is self._running
            row = self._enter(holder)
            counts = self._running if is_running else self._waiting
        counts[row] += more
        if counts is self._running:
            self.tenants_running[self._numbers[row]] += more
        self._weights[row] = sequence.request.tenant.weight
        if not self._waiting[row] and not self._running[row]:
            del self._rows[holder]
            self._unused.append(row)

    def _enter(self, holder: Holder) -> int:
        if self._unused:
            row = self._unused.pop()
            self._holders[row] = holder
        else:
            row = len(self._holders)
            self._holders.append(holder)
            if row == len(self._waiting):
                self._grow()
        self.entries += 1
        self._rows[holder] = row
        self._classes[row] = _CLASSES[holder[0]]
        number = self._numbers[row] = self._number_of(holder[1])
        if number >= len(self.tenants_running):
            more = np.zeros(number, np.int64)
            self.tenants_running = np.concatenate([self.tenants_running, more])
        return row

    def _grow(self) -> None:
        size = len(self._waiting)
        for name in ("_waiting", "_running", "_weights", "_classes"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(size, column.dtype)]))
        self._numbers += [0] * size


def fair_shares(
    capacity: float,
    demand: Int64s,  # [num_rows] sequences
    weights: Float64s,  # [num_rows], positive
    classes: Int64s,  # [num_rows]
) -> Float64s:  # [num_rows]
    """Max-min fair parts of `capacity`: of the classes by their weights, of the tenants in a class
    by theirs. Nobody has more than it asks for, and what one leaves the others have. O(n log n)."""
    totals = np.bincount(classes, demand, len(_CLASS_WEIGHTS))
    shares = np.zeros(len(demand))
    for number, part in enumerate(_filled(capacity, totals, _CLASS_WEIGHTS)):
        rows = np.flatnonzero(classes == number)
        shares[rows] = _filled(part, demand[rows], weights[rows])
    return shares


def _filled(capacity: float, demand: Int64s | Float64s, weights: Float64s) -> Float64s:
    """Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): the level, over
    the weights, at which who asks for less has it all and the others share what is left."""
    order = np.argsort(demand / weights, kind="stable")
    asked, weight = demand[order].astype(np.float64), weights[order]
    left = capacity - (np.cumsum(asked) - asked)
    levels = left / np.cumsum(weight[::-1])[::-1]  # if all before it have what they ask for
    short = np.flatnonzero(asked > levels * weight)
    everything = demand.astype(np.float64)
    return np.minimum(everything, levels[short[0]] * weights) if short.size else everything
