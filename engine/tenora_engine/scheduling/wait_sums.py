"""WaitSums: what the sequences of one tenant in one class have waited, by what took the time. It
knows places in a `WaitClock`'s readings, not what they are called."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tenora_engine.scheduling.wait_clock import FIRST_TENANT, Float64s

COUNTED_S = 0.001
"""A sequence is counted among those that waited for something once it was that long."""

NEW_MAX = 32
"""Sequences whose waits are not in the sums yet."""


class WaitSums:
    """Sums only rise. A place that is once told apart, or not, stays so."""

    def __init__(self, size: int) -> None:
        self._seconds: Float64s = np.zeros(size)
        self._sequences = np.zeros(size, np.int64)
        self._known = np.zeros(size, np.int8)  # 1 is told apart, -1 is not, 0 is not known yet
        self._new: list[tuple[Float64s, Float64s | None]] = []  # not added yet

    def add(self, parts: Float64s, told: Float64s | None) -> None:
        """A sequence has waited `parts` so far, of which `told` has been added before."""
        self._new.append((parts, told))
        if len(self._new) >= NEW_MAX:
            self._fold()

    def learn(self, left: int) -> int:
        """Of the tenants that are new here, so many at most are told apart from now on; returns how
        many are."""
        self._fold()
        new = np.flatnonzero((self._known == 0) & (self._seconds > 0))
        new = new[new >= FIRST_TENANT]
        self._known[new] = -1
        self._known[new[:left]] = 1
        return min(len(new), left)

    def places(self) -> Iterator[tuple[int, float, int, bool]]:
        """Place, seconds, sequences and whether it is told apart, of those that are above 0, as of
        the last `learn`."""
        for place in np.flatnonzero(self._seconds).tolist():
            is_apart = bool(self._known[place] > 0)
            yield place, float(self._seconds[place]), int(self._sequences[place]), is_apart

    def _fold(self) -> None:
        """Several at once: one by one they would take too much of a step's time."""
        whole = [parts for parts, told in self._new if told is None]
        if whole:
            rows = np.array(whole)
            self._seconds += rows.sum(axis=0)
            self._sequences += (rows >= COUNTED_S).sum(axis=0)
        for parts, told in self._new:
            if told is not None:
                self._seconds += parts - told
                self._sequences += (parts >= COUNTED_S) & (told < COUNTED_S)
        self._new.clear()
