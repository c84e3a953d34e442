"""How much of usage events one answer reads: the hours that have what is looked for, which the sums
know, in slices, and no more than a bound. It knows no queries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

READ_MAX = 50_000
"""Sequences that are looked through for one answer, about; the next one goes on behind them."""
FIRST = 1_000  # together; then four times as many, and so on
_MORE = 4
HOUR = timedelta(hours=1)
_WINDOW = timedelta(days=1)


class Hour(NamedTuple):
    """With how many sequences of the tenant's ended in it."""

    begins: datetime
    sequences: int


class Span(NamedTuple):
    """From `begins` until before `ends`."""

    begins: datetime
    ends: datetime


@dataclass(frozen=True, slots=True)
class Slice:
    """Hours to look into together. `stops`: there are more, and this is enough for one answer."""

    hours: Sequence[Hour]
    stops: bool = False

    @property
    def spans(self) -> list[Span]:
        """Neighbours as one, the oldest first: each look asks every month."""
        found: list[Span] = []
        for hour in sorted(each.begins for each in self.hours):
            begins = found.pop().begins if found and found[-1].ends == hour else hour
            found.append(Span(begins, hour + HOUR))
        return found


def windows(begin: datetime, end: datetime, *, newest_first: bool) -> Iterator[Span]:
    """In which the sums are asked for hours: a short time first, for a page often ends there."""
    length = _WINDOW
    while begin < end:
        if newest_first:
            since = max(begin, end - length)
            yield Span(since, end)
            end = since
        else:
            until = min(end, begin + length)
            yield Span(begin, until)
            begin = until
        length *= _MORE


def sizes() -> list[int]:
    """How many sequences to read together, until they are enough for one answer."""
    found: list[int] = []
    many = FIRST
    while sum(found) < READ_MAX:
        found.append(min(many, READ_MAX - sum(found)))
        many *= _MORE
    return found


async def sliced(hours: AsyncIterator[Hour]) -> AsyncIterator[Slice]:
    """An hour is never parted, however much it has."""
    left = sizes()
    some: list[Hour] = []
    rows = 0
    async for hour in hours:
        rows += hour.sequences
        if some and rows > left[0]:
            left.pop(0)
            yield Slice(some, stops=not left)
            if not left:
                return
            some, rows = [], hour.sequences
        some.append(hour)
    if some:
        yield Slice(some)
