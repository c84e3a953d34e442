"""WaitClock: seconds that go by, by what takes them. It knows neither who waits nor why: whoever
begins to wait keeps its reading, and what it shows beyond that in the end is the wait, taken
apart."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

# What takes a second: these, and then two for each tenant by its number.
START, LOAD, OWN, NOBODYS_PAGES = range(4)
FIRST_TENANT = 4


def queue_of(number: int) -> int:
    """A step that served the tenant of this number."""
    return FIRST_TENANT + 2 * number


def pages_of(number: int) -> int:
    """Memory that it held."""
    return FIRST_TENANT + 2 * number + 1


def size_for(num_tenants: int) -> int:
    return FIRST_TENANT + 2 * num_tenants


class WaitClock:
    """`reading[i]` are the seconds that `i` has taken since it was made, while `rates[i]` is the
    part of each second that it takes now; they add up to 1. Readings are never changed in place,
    so that to keep one costs nothing."""

    __slots__ = ("_last_s", "jumps", "members", "rated_s", "rates", "reading")

    def __init__(self, size: int, nobodys: int = START) -> None:
        """`nobodys`: what takes all as long as no rates are set."""
        self.reading: Float64s = np.zeros(size)
        self.rates: Float64s = np.zeros(size)
        self.rates[nobodys] = 1.0
        self.rated_s = -np.inf  # when the rates were last looked at
        self.members = 0  # that go by it; its owner counts them
        self.jumps = 0  # times that it was set back
        self._last_s: float | None = None

    def advance(self, now_s: float) -> None:
        """Until now it went at the present rates. A wall clock that was set back takes nothing."""
        last_s, self._last_s = self._last_s, now_s
        if now_s == last_s or last_s is None:
            return
        elapsed_s = now_s - last_s
        if elapsed_s < 0:
            self.jumps += 1
            return
        self.reading = self.reading + self.rates * elapsed_s

    def set_rates(self, parts: Float64s, total: float, nobodys: int = START) -> None:
        """From now on, by `parts`, which add up to `total` and are taken over; where that is 0,
        `nobodys` takes all."""
        if total > 0:
            parts /= total
        else:
            parts[nobodys] = 1.0
        self.rates = parts
