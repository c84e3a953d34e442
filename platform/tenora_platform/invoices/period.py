"""Months as invoices have them: in UTC, named "2026-11"."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

from pydantic import StringConstraints

PeriodName = Annotated[str, StringConstraints(pattern=r"^20\d\d-(0[1-9]|1[0-2])$")]
"""Within the years that the books take (`times.py`)."""


def first_day(name: str) -> date:
    return date.fromisoformat(f"{name}-01")


def name_of(period: date) -> str:
    return f"{period:%Y-%m}"


def month_of(time: datetime) -> date:
    return time.astimezone(UTC).date().replace(day=1)


def end_of(period: date) -> date:
    """The first day that is not of it."""
    return (period + timedelta(days=31)).replace(day=1)


def months_from(period: date, last: datetime) -> Iterator[date]:
    """The months from this one on that have begun by `last`."""
    while midnight(period) <= last:
        yield period
        period = end_of(period)


def before(period: date) -> date:
    return (period - timedelta(days=1)).replace(day=1)


def midnight(day: date) -> datetime:
    """When it begins."""
    return datetime.combine(day, time(), UTC)
