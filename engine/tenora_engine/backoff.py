"""How long to wait before what has ended is started again. Knows neither what it is nor a clock."""

from __future__ import annotations


class Backoff:
    """Keeps starts apart: by `first_s`, doubled with each end to at most `max_s`, and anew after a
    run of `healthy_s`. What fails at once is not started in a tight loop; what took longer than
    that to start, or ran well, is started again without a wait.
    """

    def __init__(self, first_s: float = 0.2, max_s: float = 4.0, healthy_s: float = 10.0) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._healthy_s = healthy_s
        self._apart_s = first_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait after a run that was begun `ran_s` seconds ago, its start included."""
        if ran_s >= self._healthy_s:
            self._apart_s = self._first_s
        wait_s = max(0.0, self._apart_s - ran_s)
        self._apart_s = min(2 * self._apart_s, self._max_s)
        return wait_s
