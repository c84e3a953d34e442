"""What was used and what it costs, by time and group: whole hours and days from the sums, what is
left of a window at its ends from the events themselves. No decisions, no commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Date,
    DateTime,
    FromClause,
    Integer,
    Numeric,
    Select,
    and_,
    cast,
    column,
    func,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS, PriceList
from tenora_platform.billing.rating import Billable, Rating, exact_sum, rate_again
from tenora_platform.billing.repository import price_lists
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.db import in_slices
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.records import held_billable, stored_billable
from tenora_platform.usage.sums import AMOUNTS, COUNTS, moves
from tenora_platform.usage.tables import (
    OccupancyEventRow,
    UsageDayRow,
    UsageEventRow,
    UsageHourRow,
    UsageSeriesRow,
)

Group = Literal["tenant", "adapter", "adapter_version", "api_key", "model", "tier", "kind"]
Unit = Literal["hour", "day", "month"]
Keys = tuple[tuple[str, Any], ...]
"""A group: what `GroupKeys` of the schemas names, with its values."""
_MIDNIGHT = time(tzinfo=UTC)
_FREE = Decimal(0)
_MEASURED = (*COUNTS, *METERS)
_RATED_AT_ONCE = 50  # events: 5 ms
OTHERS: Keys = (("others", None),)
"""All groups that are not among the kept ones, as one."""

_COLUMNS: Mapping[Group, tuple[tuple[str, ColumnElement[Any]], ...]] = {
    "tenant": (("tenant_id", UsageSeriesRow.tenant_id.expression),),
    "adapter": (("adapter", AdapterRow.name.expression),),
    "adapter_version": (
        ("adapter", AdapterRow.name.expression),
        ("adapter_version", AdapterVersionRow.number.expression),
    ),
    "api_key": (("api_key_id", UsageSeriesRow.api_key_id.expression),),
    "model": (("model", UsageSeriesRow.model.expression),),
    "tier": (("tier", UsageSeriesRow.class_.expression),),
    "kind": (("kind", UsageSeriesRow.kind.expression),),
}


@dataclass(frozen=True)
class Window:
    """Which usage, and how it is put together."""

    start: datetime
    end: datetime  # exclusive
    unit: Unit
    groups: tuple[Group, ...]
    tenant_id: str | None  # None: all tenants (operator)
    internal: bool = True  # the platform's own among all


@dataclass(frozen=True, slots=True)
class Summed:
    """One meter of one bucket and group. `currency` None: of what was not priced."""

    bucket: datetime
    group: Keys
    currency: str | None
    meter: str
    quantity: int
    amount: Decimal

    def plus(self, other: Summed) -> Summed:
        amount = exact_sum((self.amount, other.amount))
        return replace(self, quantity=self.quantity + other.quantity, amount=amount)


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` until before `end`."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Pieces:
    """A window as the tables have it: whole days, other whole hours, and the rest of hours."""

    days: tuple[Span, ...]
    hours: tuple[Span, ...]
    events: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one table of sums that are in a window."""

    row: type[UsageDayRow | UsageHourRow]
    bucket: Any  # of such a row
    conditions: tuple[ColumnElement[bool], ...]

    @property
    def begin(self) -> ColumnElement[Any]:
        """The bucket's first moment, whichever table's."""
        if self.row is UsageHourRow:
            return cast(self.bucket, DateTime(timezone=True))
        return func.timezone("UTC", cast(self.bucket, DateTime))

    def rows(self, window: Window, *columns: Any) -> Select[Any]:
        """These columns of the rows, their series and, where groups need them, adapters."""
        query = (
            select(*columns)
            .select_from(self.row)
            .join(UsageSeriesRow, UsageSeriesRow.id == self.row.series_id)
            .where(*self.conditions)
        )
        return _with_adapters(query.where(*_of_tenants(self.row, window)), window)


def floor(moment: datetime, unit: Unit) -> datetime:
    hour = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return hour
    day = hour.replace(hour=0)
    return day if unit == "day" else day.replace(day=1)


def pieces(start: datetime, end: datetime, *, by_day: bool = True) -> Pieces:
    """Of which `start` to `end` consists; without `by_day`, of hours only."""
    hours, edges = _inner(start, end, timedelta(hours=1), "hour")
    if not by_day:
        return Pieces((), hours, edges)
    days: tuple[Span, ...] = ()
    rest: tuple[Span, ...] = ()
    for span in hours:
        days, rest = _inner(span.start, span.end, timedelta(days=1), "day")
    return Pieces(days, rest, edges)


def _inner(
    start: datetime, end: datetime, length: timedelta, unit: Unit
) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """(the whole units of a span, what is left of it before and after them)."""
    first, last = floor(start, unit), floor(end, unit)
    if first < start:
        first += length
    if first >= last:
        return (), ((Span(start, end),) if start < end else ())
    around = (Span(start, first), Span(last, end))
    return (Span(first, last),), tuple(each for each in around if each.start < each.end)


async def archived_edge(session: AsyncSession, window: Window) -> Span | None:
    """A part of an hour at the window's ends whose events only the archive has any more: the sums
    know of usage in that hour, and its month has left the database."""
    of = pieces(window.start, window.end, by_day=window.unit != "hour")
    for span in of.events:
        hour = floor(span.start, "hour")
        query = select(func.count()).where(
            UsageHourRow.hour == hour,
            UsageHourRow.sequences > 0,
            func.to_regclass(f"usage_events_{hour:%Y_%m}").is_(None),
        )
        if await session.scalar(query.where(*_of_tenants(UsageHourRow, window))):
            return span
    return None


async def sums(session: AsyncSession, window: Window) -> list[Summed]:
    """Of all meters, in no order; a group may come more than once in a bucket."""
    return [*await stored(session, window), *await of_edges(session, window)]


def parts(window: Window) -> Iterator[Part]:
    of = pieces(window.start, window.end, by_day=window.unit != "hour")
    day: Any = UsageDayRow.day
    if window.unit == "month":
        day = func.date_trunc("month", UsageDayRow.day).cast(Date)
    for span in of.days:
        within = (UsageDayRow.day >= span.start.date(), UsageDayRow.day < span.end.date())
        yield Part(UsageDayRow, day, within)
    hour = func.date_trunc(window.unit, UsageHourRow.hour, "UTC")
    for span in of.hours:
        begun = (UsageHourRow.hour >= span.start, UsageHourRow.hour < span.end)
        yield Part(UsageHourRow, hour, begun)


async def stored(
    session: AsyncSession, window: Window, kept: Sequence[Keys] | None = None
) -> list[Summed]:
    """Of whole hours and days. With `kept`, the database adds all other groups up as `OTHERS`."""
    found: list[Summed] = []
    for part in parts(window):
        found += await _stored(session, window, part, kept)
    return found


async def _stored(
    session: AsyncSession, window: Window, part: Part, kept: Sequence[Keys] | None
) -> list[Summed]:
    own = key_columns(window)
    groups: list[ColumnElement[Any]] = [each.label(name) for name, each in own.items()]
    if kept is not None:
        groups = [column("place", Integer)]
    keys = [part.bucket, *groups, PriceVersionRow.currency]
    sums = [func.sum(getattr(part.row, name)) for name in (*_MEASURED, *AMOUNTS.values())]
    query = part.rows(window, *keys, *sums).group_by(*keys)
    query = query.outerjoin(PriceVersionRow, PriceVersionRow.no == part.row.price_version_no)
    if kept is not None:
        table = as_table(window, kept)
        query = query.outerjoin(table, _is_in(window, table))
    first = 2 + len(groups)
    costs = first + len(_MEASURED)
    found = []
    async for row in in_slices(session, query):
        begin, group, currency = row[0], row[1 : first - 1], row[first - 1]
        at = begin if isinstance(begin, datetime) else datetime.combine(begin, _MIDNIGHT)
        if kept is None:
            of: Keys = tuple(zip(own, group, strict=True))
        else:
            of = OTHERS if group[0] is None else kept[group[0] - 1]
        where = (at.astimezone(UTC), of, currency)
        amounts = (*(_FREE,) * len(COUNTS), *row[costs:])
        found += [
            Summed(*where, meter, int(quantity), amount)
            for meter, quantity, amount in zip(_MEASURED, row[first:costs], amounts, strict=True)
            if quantity or amount
        ]
    return found


def key_columns(window: Window) -> dict[str, ColumnElement[Any]]:
    """What a window is grouped by, under the names of its keys."""
    return {name: each for group in window.groups for name, each in _COLUMNS[group]}


def as_table(window: Window, groups: Sequence[Keys], **more: Sequence[Decimal]) -> FromClause:
    """Groups as rows: their keys, further numbers, and their `place` from 1 on."""
    own = key_columns(window)
    arrays = [
        literal([dict(keys)[name] for keys in groups], ARRAY(each.type))
        for name, each in own.items()
    ]
    arrays += [literal(list(numbers), ARRAY(Numeric())) for numbers in more.values()]
    columns = [column(name, each.type) for name, each in own.items()]
    columns += [column(name, Numeric()) for name in more]
    table = func.unnest(*arrays).table_valued(*columns, with_ordinality="place")
    return table.render_derived()


def _is_in(window: Window, table: FromClause) -> ColumnElement[bool]:
    """Equal keys, NULL equal to NULL: as equations of what is never NULL, which can be hashed."""
    equal: list[ColumnElement[bool]] = []
    for name, each in key_columns(window).items():
        other, nothing = table.c[name], literal(0 if isinstance(each.type, Integer) else "")
        equal += [
            func.coalesce(each, nothing) == func.coalesce(other, nothing),
            each.is_(None) == other.is_(None),
        ]
    return and_(*equal)


def _with_adapters(query: Select[Any], window: Window) -> Select[Any]:
    if not {"adapter", "adapter_version"} & set(window.groups):
        return query
    return query.outerjoin(
        AdapterVersionRow, AdapterVersionRow.id == UsageSeriesRow.adapter_version_id
    ).outerjoin(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)


async def of_edges(session: AsyncSession, window: Window) -> list[Summed]:
    """Of the parts of hours at the window's ends."""
    of = pieces(window.start, window.end, by_day=window.unit != "hour")
    found: dict[tuple[datetime, Keys, str | None, str], Summed] = {}
    for span in of.events:
        async for each in _of_events(session, window, span):
            key = (each.bucket, each.group, each.currency, each.meter)
            found[key] = found[key].plus(each) if key in found else each
    return list(found.values())


async def _of_events(session: AsyncSession, window: Window, span: Span) -> AsyncIterator[Summed]:
    """What the sums would have of these few."""
    tenants = None if window.tenant_id is None else [window.tenant_id]
    lists = {price.no: price for price in await price_lists(session, tenants=tenants)}
    own = key_columns(window)
    for of, ended in (
        (UsageEventRow, UsageEventRow.event_time),
        (OccupancyEventRow, OccupancyEventRow.ends),
    ):
        query: Select[Any] = (
            select(of, UsageSeriesRow, *own.values())
            .join(UsageSeriesRow, UsageSeriesRow.id == of.series_id)
            .where(ended >= span.start, ended < span.end)
        )
        if window.tenant_id is not None:
            query = query.where(of.tenant_no == tenant_no(window.tenant_id))
        elif not window.internal:
            query = query.where(of.tenant_no.not_in(internal_numbers()))
        query = _with_adapters(query, window)
        async for row, series, *group in in_slices(session, query, rows=_RATED_AT_ONCE):
            event, sequence = _billable(row, series)
            rating = rating_of(lists, event, row.price_version_no, row.positions)
            bucket = floor(event.event_time, window.unit)
            group_of = tuple(zip(own, group, strict=True))
            for move in moves(event, rating, sequence):
                price = lists.get(move.price_version_no)
                currency = None if price is None else price.currency
                yield Summed(bucket, group_of, currency, move.meter, move.quantity, move.amount)


def _billable(
    row: UsageEventRow | OccupancyEventRow, series: UsageSeriesRow
) -> tuple[Billable, int | None]:
    """With its sequence, if it is of a request."""
    if isinstance(row, OccupancyEventRow):
        return held_billable(row, series), None
    return stored_billable(row, series), row.sequence


def rating_of(
    lists: Mapping[int, PriceList],
    event: Billable,
    price_version_no: int | None,
    positions: Sequence[int] | None,
) -> Rating | None:
    """The rating that is stored with an event, made again with all its lines; None if it waits for
    one. Raises KeyError for a list that is not there, UnratableError for one that was another."""
    if price_version_no is None:
        return None
    if not price_version_no:
        return Rating(event, None, (), None)
    return rate_again(lists[price_version_no], event, positions)


def _of_tenants(row: type[UsageDayRow | UsageHourRow], window: Window) -> list[ColumnElement[bool]]:
    if window.tenant_id is not None:
        return [row.tenant_id == window.tenant_id]
    if window.internal:
        return []
    return [row.tenant_id.not_in(select(TenantRow.id).where(TenantRow.internal))]


def internal_numbers() -> Select[int]:
    """Of the platform's own tenants."""
    return select(TenantRow.no).where(TenantRow.internal)


def tenant_no(tenant_id: str) -> Any:
    """As a subquery."""
    return select(TenantRow.no).where(TenantRow.id == tenant_id).scalar_subquery()
