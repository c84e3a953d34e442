"""The sums of a month made anew from its events, should they ever be wrong. What they are made of
is said in `sums`; who asks for it is an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import TextClause, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS, Meter, PriceList
from tenora_platform.billing.rating import Billable, Rating, exact_amount
from tenora_platform.billing.repository import price_lists
from tenora_platform.db import Database
from tenora_platform.usage.archive import UsageArchive
from tenora_platform.usage.reading import Span, rating_of
from tenora_platform.usage.records import held_billable, stored_billable
from tenora_platform.usage.sums import Key, Sums
from tenora_platform.usage.tables import OccupancyEventRow, UsageEventRow, UsageSeriesRow

_FREE = Decimal(0)
_LOCK = text("LOCK TABLE usage_hours, usage_days IN SHARE ROW EXCLUSIVE MODE")
_DUE = text(
    "INSERT INTO ledger_due (tenant_id, day) "
    "SELECT DISTINCT tenant_id, day FROM usage_days WHERE day >= :first AND day < :end "
    "ON CONFLICT (tenant_id, day) DO UPDATE SET since = now()"
)
_NONE = (0, _FREE)
_TOTALS: Mapping[Literal["hours", "days"], TextClause] = {
    "hours": text(
        "SELECT tenant_id, CAST(hour AT TIME ZONE 'UTC' AS date) AS day, meter, sum(quantity), "
        "sum(amount) FROM usage_hour_meters WHERE hour >= :start AND hour < :end GROUP BY 1, 2, 3"
    ),
    "days": text(
        "SELECT tenant_id, day, meter, sum(quantity), sum(amount) FROM usage_day_meters "
        "WHERE day >= CAST(:start AT TIME ZONE 'UTC' AS date) "
        "AND day < CAST(:end AT TIME ZONE 'UTC' AS date) GROUP BY 1, 2, 3"
    ),
}
_DROP_DAYS = text("DELETE FROM usage_days WHERE day >= :first AND day < :end")
_DROP_HOURS = text("DELETE FROM usage_hours WHERE hour >= :begins AND hour < :ends")


def month_of(day: date) -> Span:
    """The month (UTC) that this day is in."""
    first = datetime(day.year, day.month, 1, tzinfo=UTC)
    return Span(first, datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Moved:
    """What the month's hours, or its days, had of a tenant's day and meter, and have now."""

    table: Literal["hours", "days"]
    tenant_id: str
    day: date
    meter: str
    quantity: tuple[int, int]
    amount: tuple[Decimal, Decimal]


async def rebuild_sums(db: Database, archive: UsageArchive, month: date) -> list[Moved]:
    """As `rebuild_in`, in a transaction of its own."""
    async with db.patient().admin_session() as session:
        return await rebuild_in(session, archive, month)


async def rebuild_in(session: AsyncSession, archive: UsageArchive, month: date) -> list[Moved]:
    """Replace the sums of the month of this day, of events in the database and archived ones.
    Whoever stores meanwhile waits. What has moved, which is returned, is posted by the ledger
    again. Raises ArchiveError where a file is not what it was."""
    span = month_of(month)
    days = {"first": span.start.date(), "end": span.end.date()}
    await session.execute(_LOCK)
    before = await _totals(session, span)
    await session.execute(_DUE, days)
    made = await sums_of(session, span)
    await _add_archived(session, archive, span, made)
    await session.execute(_DROP_DAYS, days)
    await session.execute(_DROP_HOURS, {"begins": span.start, "ends": span.end})
    await made.write(session)
    now = await _totals(session, span)
    moved = []
    for key in sorted(before.keys() | now.keys()):
        (quantity, amount), (new_quantity, new_amount) = before.get(key, _NONE), now.get(key, _NONE)
        if (quantity, amount) != (new_quantity, new_amount):
            moved.append(Moved(*key, (quantity, new_quantity), (amount, new_amount)))
    return moved


_Totals = dict[tuple[Literal["hours", "days"], str, date, str], tuple[int, Decimal]]


async def _totals(session: AsyncSession, span: Span) -> _Totals:
    found: _Totals = {}
    values = {"start": span.start, "end": span.end}
    for table, query in _TOTALS.items():
        for tenant_id, day, meter, *total in await session.execute(query, values):
            found[table, tenant_id, day, meter] = int(total[0]), total[1]
    return found


async def sums_of(session: AsyncSession, span: Span) -> Sums:
    """Of the events that ended in between and are in the database."""
    lists = {price.no: price for price in await price_lists(session)}
    found = Sums()
    async for row in await session.stream(_alike(span)):
        _add_alike(found, lists, row)
    async for event, series_id, rating, sequence in _each(session, span, lists):
        found.add(event, series_id, rating, sequence)
    return found


def _alike(span: Span) -> Any:
    """Events on whose price no position bears cost the same apart and together."""
    event, series = UsageEventRow, UsageSeriesRow
    hour = func.date_trunc("hour", event.event_time, "UTC")
    keys = (hour, event.series_id, event.price_version_no, series.tenant_id, series.class_)
    return (
        select(
            *keys,
            func.count(),
            func.count().filter(event.sequence == 0),
            func.sum(func.ceil(event.amount * 10**9)),
            func.sum(event.prompt_tokens - event.cached_tokens),
            func.sum(event.cached_tokens),
            func.sum(event.output_tokens),
            func.sum(event.cold_loads),
        )
        .join(series, series.id == event.series_id)
        .where(
            event.event_time >= span.start, event.event_time < span.end, event.positions.is_(None)
        )
        .group_by(*keys)
    )


def _add_alike(found: Sums, lists: Mapping[int, PriceList], row: Any) -> None:
    hour, series_id, version, tenant_id, class_, sequences, requests, nanos, *quantities = row
    no = version or 0
    key = Key(tenant_id, hour.astimezone(UTC), series_id, no)

    def put(meter: str, quantity: int, amount: Decimal = _FREE) -> None:
        if quantity:
            found.put(key, meter, quantity, amount)

    put("sequences", sequences)
    put("requests", requests)
    if version is None:
        put("unrated", sequences)
    put("charged_nanos", int(nanos or 0))
    for meter, quantity in zip(METERS[:4], map(int, quantities), strict=True):
        if quantity:
            put(meter, quantity, _amount(lists[no], meter, class_, quantity) if no else _FREE)


def _amount(price: PriceList, meter: Meter, class_: str, quantity: int) -> Decimal:
    tiers = price.tiers_of(meter, class_)
    if tiers is None:
        raise LookupError(f"price list {price.id} no longer has a price for {meter}")
    return exact_amount(quantity, tiers[0].per_million)


async def _each(
    session: AsyncSession, span: Span, lists: Mapping[int, PriceList]
) -> AsyncIterator[tuple[Billable, int, Rating | None, int | None]]:
    """The other events, one by one, and occupancy."""
    requests = (
        select(UsageEventRow, UsageSeriesRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .where(
            UsageEventRow.event_time >= span.start,
            UsageEventRow.event_time < span.end,
            UsageEventRow.positions.is_not(None),
        )
    )
    async for row, series in await session.stream(requests.execution_options(yield_per=5000)):
        event = stored_billable(row, series)
        rating = rating_of(lists, event, row.price_version_no, row.positions)
        yield event, row.series_id, rating, row.sequence
    occupancy = (
        select(OccupancyEventRow, UsageSeriesRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == OccupancyEventRow.series_id)
        .where(OccupancyEventRow.ends >= span.start, OccupancyEventRow.ends < span.end)
    )
    async for held, series in await session.stream(occupancy.execution_options(yield_per=5000)):
        event = held_billable(held, series)
        yield event, held.series_id, rating_of(lists, event, *_price(held)), None


async def _add_archived(
    session: AsyncSession, archive: UsageArchive, span: Span, found: Sums
) -> None:
    """Events that only files have any more. Their series are in the database for ever."""
    lists = {price.no: price for price in await price_lists(session)}
    known: dict[int, UsageSeriesRow] = {}
    for part in await archive.parts(session):
        if part.last_event < span.start or part.first_event >= span.end:
            continue
        async for each in archive.read(part):
            row = each.row
            if not span.start <= row.event_time < span.end:
                continue
            if row.series_id not in known:
                known[row.series_id] = await session.get_one(UsageSeriesRow, row.series_id)
            event = stored_billable(row, known[row.series_id])
            rating = rating_of(lists, event, row.price_version_no, row.positions)
            found.add(event, row.series_id, rating, row.sequence)


def _price(row: OccupancyEventRow) -> tuple[int | None, list[int] | None]:
    return row.price_version_no, row.positions
