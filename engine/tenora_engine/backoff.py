"""How long to wait before what has ended is started again. Knows neither what it is nor a clock."""

from __future__ import annotations


class Backoff:
    """Waits that double from `first_s` to `max_s` with each end, and begin anew after a run of
    `healthy_s`: what fails at once is not started in a tight loop, what ran well is back at once.
    """

    def __init__(self, first_s: float = 0.2, max_s: float = 4.0, healthy_s: float = 10.0) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._healthy_s = healthy_s
        self._next_s = first_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait after a run of `ran_s` seconds (0: it did not even start)."""
        if ran_s >= self._healthy_s:
            self._next_s = self._first_s
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, self._max_s)
        return wait_s
