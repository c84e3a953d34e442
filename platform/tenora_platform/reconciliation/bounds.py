"""What a run looks at: tenants and days, and how a query says so. It reads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, LiteralString

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Window:
    """A tenant's days, from `first` to `last`."""

    tenant_no: int
    tenant_id: str
    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is looked at: of one tenant or of all, from a day to another or ever. `windows`: these
    alone."""

    tenant_no: int | None = None
    tenant_id: str | None = None
    first: date | None = None
    last: date | None = None
    windows: Sequence[Window] | None = None

    @property
    def everything(self) -> bool:
        every = (self.tenant_no, self.first, self.last, self.windows)
        return all(each is None for each in every)

    def has(self, tenant_id: str, day: date) -> bool:
        """Whether a tenant's day lies within."""
        if self.windows is not None:
            mine = (each for each in self.windows if each.tenant_id == tenant_id)
            return any(each.first <= day <= each.last for each in mine)
        return self.tenant_id in (None, tenant_id) and self.holds(day)

    def since(self, first: date) -> Bounds:
        """What of it is not before this day; of no windows."""
        return replace(self, first=max(first, self.first or first))

    def holds(self, day: date) -> bool:
        """Whether it lies within, of whichever tenant; of no windows."""
        first, last = self.first or date.min, self.last or date.max
        return self.windows is None and first <= day <= last

    def by_month(self, months: Sequence[date]) -> Iterator[Bounds]:
        """The same in parts that follow one another, none longer than a month of `months` (their
        first days, in order) and those up to the next; the first and the last reach as far as the
        whole does. A part that holds nothing is left out."""
        begins = [None, *months[1:]]
        ends = [*(each - _DAY for each in months[1:]), None]
        for first, last in zip(begins, ends, strict=True):
            part = self._within(first, last)
            if part is not None:
                yield part

    def _within(self, first: date | None, last: date | None) -> Bounds | None:
        if self.windows is not None:
            cut = [
                Window(each.tenant_no, each.tenant_id, *span)
                for each in self.windows
                if (span := _overlap(each.first, each.last, first, last)) is not None
            ]
            return Bounds(windows=cut) if cut else None
        span = _overlap(self.first or date.min, self.last or date.max, first, last)
        if span is None:
            return None
        begin, end = span
        return replace(
            self,
            first=None if begin == date.min else begin,
            last=None if end == date.max else end,
        )

    def of(
        self, table: LiteralString, tenant: LiteralString, time: LiteralString
    ) -> tuple[LiteralString, list[Any]]:
        """FROM `table`, called t, what lies within, by its columns of the tenant (number or id) and
        of a time or day."""
        by_id = tenant != "tenant_no"
        # Of one type with its column: else nothing is known of how many rows there will be.
        at: LiteralString = "date" if time == "day" else "timestamptz"
        bound = begin_of if at == "timestamptz" else _itself
        if self.windows is not None:
            kind: LiteralString = "text" if by_id else "integer"
            begins = [bound(each.first) for each in self.windows]
            ends = [bound(each.last + _DAY) for each in self.windows]
            owners = [each.tenant_id if by_id else each.tenant_no for each in self.windows]
            # OFFSET 0: each by itself through the tenant's index, however many there are.
            joined = (
                f" FROM unnest(%s::{kind}[], %s::{at}[], %s::{at}[])"
                f" AS w (w_owner, w_begin, w_end) CROSS JOIN LATERAL (SELECT * FROM {table} AS x"
                f" WHERE x.{tenant} = w.w_owner AND x.{time} >= w.w_begin AND x.{time} < w.w_end"
                " OFFSET 0) AS t"
            )
            return joined, [owners, begins, ends]
        found: LiteralString = f" FROM {table} AS t WHERE true"
        values: list[Any] = []
        if self.tenant_no is not None:
            found += f" AND t.{tenant} = %s"
            values.append(self.tenant_id if by_id else self.tenant_no)
        if self.first is not None:
            found += f" AND t.{time} >= %s::{at}"
            values.append(bound(self.first))
        if self.last is not None:
            found += f" AND t.{time} < %s::{at}"
            values.append(bound(self.last + _DAY))
        return found, values


def _itself(day: date) -> date:
    return day


def _overlap(
    first: date, last: date, begin: date | None, end: date | None
) -> tuple[date, date] | None:
    found = max(first, begin or first), min(last, end or last)
    return found if found[0] <= found[1] else None


def begin_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
