"""The two clocks. Intervals are differences of `steady`, which never jumps and means nothing to
another process; unix time is only for what is stored or shown. Nothing else here reads a wall
clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since whatever moment; what tests and simulations put in the place of either."""

steady: Clock = time.monotonic


def wall() -> float:
    """Unix time, as the machine has it now; may jump either way."""
    return time.time()


def wall_ms() -> int:
    """The same in whole milliseconds."""
    return time.time_ns() // 1_000_000


def today() -> datetime:
    """The same in UTC, for days of the calendar."""
    return datetime.now(UTC)


def local_now() -> datetime:
    """The time of day in the machine's own zone."""
    return datetime.now()


def unix_offset(clock: Clock, wall_clock: Clock | None = None) -> Clock:
    """Makes what gives, whenever it is called, the seconds to add to a moment of `clock` for its
    unix time. Added to several moments of one thing, it keeps their distances whatever the wall
    clock does meanwhile. A simulated clock tells unix time itself unless `wall_clock` is given."""
    if wall_clock is None and clock is not steady:
        return lambda: 0.0
    now = wall_clock or wall
    return lambda: now() - clock()
