"""Pace: work beside the steps in small pieces, so that no step waits long for a core. The threads
of a step meet after every phase of a layer, so whoever takes one core for a while stops them all.
It knows neither what steps nor what works beside."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

SHARE = 0.1
"""Of one core, for all work beside the steps together while steps run."""

BURST_S = 0.005
"""Processor time that may be taken at once after a rest."""

LINGER_S = 0.05
"""After a step the next one is expected for so long."""


class Pace:
    """Who works calls `rest` after each piece of about half a millisecond. It returns at once while
    nothing steps; else it sleeps until the pieces of all threads together are within SHARE."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        processor_time: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._processor_time = processor_time
        self._sleep = sleep
        self._stepping_until_s = -math.inf
        self._lock = threading.Lock()
        self._paid_until_s = -math.inf  # when what has been taken will be within SHARE
        self._thread = threading.local()

    def begin_step(self) -> None:
        self._stepping_until_s = math.inf

    def end_step(self) -> None:
        self._stepping_until_s = self._clock() + LINGER_S

    def begin(self) -> None:
        """What the calling thread did so far is not work beside the steps."""
        self._thread.used_s = self._processor_time()

    def rest(self) -> None:
        """The calling thread has done a piece of work since it last called this or `begin`."""
        used_s = self._processor_time()
        piece_s = used_s - getattr(self._thread, "used_s", used_s)
        self._thread.used_s = used_s
        now_s = self._clock()
        with self._lock:
            self._paid_until_s = max(self._paid_until_s, now_s - BURST_S / SHARE) + piece_s / SHARE
            wait_s = self._paid_until_s - now_s
        if wait_s > 0 and now_s < self._stepping_until_s:
            self._sleep(wait_s)
