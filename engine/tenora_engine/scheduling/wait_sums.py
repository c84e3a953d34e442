"""WaitSums: what the sequences of one tenant in one class have waited, by what took the time. It
knows places in a `WaitClock`'s readings, not what they are called."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tenora_engine.scheduling.wait_clock import FIRST_TENANT, Float64s, padded

COUNTED_S = 0.001
"""A sequence is counted among those that waited for something once it was that long."""


class WaitSums:
    """Sums only rise. A place that is once told apart, or not, stays so."""

    def __init__(self) -> None:
        self._seconds: Float64s = np.zeros(0)
        self._sequences: Float64s = np.zeros(0)  # whole numbers
        self._apart: npt.NDArray[np.int8] = np.zeros(0, np.int8)  # 1, or -1; 0 not known yet

    def add(self, parts: Float64s, told: Float64s | None) -> None:
        """A sequence has waited `parts` so far, of which `told` has been added before."""
        size = len(parts)
        if len(self._seconds) < size:
            self._seconds = padded(self._seconds, size)
            self._sequences = padded(self._sequences, size)
        counted = parts >= COUNTED_S
        if told is None:
            self._seconds[:size] += parts
        else:
            told = padded(told, size)
            self._seconds[:size] += parts - told
            counted &= told < COUNTED_S
        self._sequences[:size] += counted

    def learn(self, left: int) -> int:
        """Of the tenants that are new here, so many at most are told apart from now on; returns how
        many are."""
        known = np.zeros(len(self._seconds), np.int8)
        known[: len(self._apart)] = self._apart
        new = np.flatnonzero((known == 0) & (self._seconds > 0))
        new = new[new >= FIRST_TENANT]
        known[new] = -1
        known[new[:left]] = 1
        self._apart = known
        return min(len(new), left)

    def cells(self) -> Iterator[tuple[int, float, int, bool]]:
        """Place, seconds, sequences and whether it is told apart, of those that are above 0."""
        for index in np.flatnonzero(self._seconds).tolist():
            is_apart = bool(self._apart[index] > 0)
            yield index, float(self._seconds[index]), int(self._sequences[index]), is_apart
