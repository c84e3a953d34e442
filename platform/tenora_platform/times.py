"""Times as the API and the books take them: from the year 2000 until before 2200, in UTC. Beyond
Python's years PostgreSQL goes on, and one such date stored would make every later reading fail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator

EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)  # exclusive
DAY_S = 86_400


def in_bounds(time: datetime) -> bool:
    """Whether `time` may be stored. Compared in its own zone: to convert it could overflow."""
    return EARLIEST <= time < LATEST


def _bounded(time: datetime) -> datetime:
    if not in_bounds(time):
        raise ValueError("must be between the years 2000 and 2199, in UTC")
    return time.astimezone(UTC)


def _with_zone(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError("needs a time zone, such as 2030-01-01T00:00:00Z")
    return _bounded(time)


def _assuming_utc(time: datetime) -> datetime:
    return _bounded(time.replace(tzinfo=UTC) if time.tzinfo is None else time)


BodyTime = Annotated[datetime, AfterValidator(_with_zone)]
"""A time in a body: it must name its zone. Given on in UTC."""

QueryTime = Annotated[datetime, AfterValidator(_assuming_utc)]
"""A time in a query: without a zone it is UTC. Given on in UTC."""
