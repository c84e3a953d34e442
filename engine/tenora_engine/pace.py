"""Pace: work beside the steps in small pieces, so that no step waits long for a core. The threads
of a step meet after every phase of a layer, so whoever takes one core for a while stops them all.
It knows neither what steps nor what works beside."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

QUICK_BYTES = 8 * 1024**2
"""Work on no more than this is done at once: it disturbs a step or two, and somebody waits for it.
Larger work disturbs more steps, and takes the less of each the larger it is."""

LINGER_S = 0.05
"""After a step the next one is expected for so long."""


class Work(Protocol):
    """What a thread says of its work beside the steps."""

    def begin(self, num_bytes: int) -> None:
        """The calling thread begins work on so many bytes."""
        ...

    def rest(self) -> None:
        """The calling thread has done a piece of it, of about half a millisecond."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """The calling thread waits for an answer meanwhile, and takes no core."""
        ...


class Pace:
    """A thread that works calls `begin`, and `rest` after each piece of about half a millisecond,
    which sleeps while something steps: so long that the thread takes QUICK_BYTES / `num_bytes` of
    a core."""

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
        self._work = threading.local()

    def begin_step(self) -> None:
        self._stepping_until_s = math.inf

    def end_step(self) -> None:
        self._stepping_until_s = self._clock() + LINGER_S

    def begin(self, num_bytes: int) -> None:
        """The calling thread begins work on so many bytes."""
        self._work.sleep_per_s = max(num_bytes / QUICK_BYTES - 1, 0.0)
        self._work.used_s = self._processor_time()

    def rest(self) -> None:
        """The calling thread has done a piece of the work it began."""
        used_s = self._processor_time()
        wait_s = (used_s - self._work.used_s) * self._work.sleep_per_s
        if wait_s > 0 and self._clock() < self._stepping_until_s:
            self._sleep(wait_s)
        self._work.used_s = self._processor_time()

    def waiting(self) -> AbstractContextManager[None]:
        """Nobody is told."""
        return nullcontext()
