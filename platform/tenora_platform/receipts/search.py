"""Finds requests among usage events, page by page, a million of them or ten: newest first, or in
another order (`ranking`). It knows no prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    DateTime,
    Integer,
    Select,
    any_,
    cast,
    column,
    func,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.receipts.filters import Filters, Looked, looked_for
from tenora_platform.receipts.ranking import ranked
from tenora_platform.usage.tables import UsageEventRow, UsageHourRow

RANKED_DAYS = timedelta(days=31)
"""What is put in another order than by time is of so long, where no `start` is named."""
ALL_TENANTS_DAYS = timedelta(days=7)
"""And so is what is searched over all tenants, in whatever order: no index has them by time."""
_LONGEST = timedelta(days=1)  # that a request takes: it is called by when it came
_HOUR = timedelta(hours=1)
_HOURS_FIRST = 8  # that are looked through together; then four times as many, and so on
_HOURS_MORE = 4
_Time = DateTime(timezone=True)
_Event = UsageEventRow


@dataclass(frozen=True)
class _Place:
    """Of a request in the order: when the sequence that it is found by had ended."""

    event_time: datetime
    request: UUID


async def search(
    session: AsyncSession, filters: Filters, after: UUID | None, limit: int
) -> list[UUID] | None:
    """At most `limit` requests behind `after`; None if that is not among them."""
    looked = await looked_for(session, _within(filters))
    place = None
    if after is not None:
        place = await _place(session, looked, after)
        if place is None:
            return None
    if filters.sort != "newest":
        return await ranked(session, looked, after, limit)
    if filters.tenant_id is None:
        return await _of_all(session, looked, after, limit)
    if looked.series is not None:
        return await _by_hours(session, looked, place, limit)
    return [request for _, request in await session.execute(_newest(looked, place, limit))]


def _within(filters: Filters) -> Filters:
    """With the start of what is looked through."""
    if filters.start is not None or (filters.sort == "newest" and filters.tenant_id is not None):
        return filters
    length = ALL_TENANTS_DAYS if filters.tenant_id is None else RANKED_DAYS
    return replace(filters, start=(filters.end or datetime.now(UTC)) - length)


async def _place(session: AsyncSession, looked: Looked, request: UUID) -> _Place | None:
    query = (
        select(_Event.event_time)
        .where(_Event.request == request, *looked.fits(_Event))
        .order_by(_Event.sequence)
        .limit(1)
    )
    found = await session.scalar(query)
    return None if found is None else _Place(found, request)


def _newest(looked: Looked, place: _Place | None, limit: int) -> Select[datetime, UUID]:
    """(when, which), newest first."""
    conditions = looked.conditions()
    if place is not None:
        here = (place.event_time, place.request)
        conditions.append(_Event.event_time <= here[0])  # what the index knows
        conditions.append(tuple_(_Event.event_time, _Event.request) < here)
    return (
        select(_Event.event_time, _Event.request)
        .where(*conditions)
        .order_by(_Event.event_time.desc(), _Event.request.desc())
        .limit(limit)
    )


async def _of_all(
    session: AsyncSession, looked: Looked, after: UUID | None, limit: int
) -> list[UUID]:
    """Of all tenants, the last that came first: the key's own order."""
    query = (
        select(_Event.request)
        .where(*looked.conditions())
        .order_by(_Event.request.desc())
        .limit(limit)
    )
    start = looked.filters.start
    if start is not None:
        first_ms = max(int((start - _LONGEST).timestamp() * 1000), 0)
        query = query.where(_Event.request >= UUID(int=first_ms << 80))
    if after is not None:
        query = query.where(_Event.request < after)
    return list(await session.scalars(query))


async def _by_hours(
    session: AsyncSession, looked: Looked, place: _Place | None, limit: int
) -> list[UUID]:
    """Looks only into the hours in which these series were used, which the sums know: what is rare
    is found without reading all that is not."""
    hours = await _hours(session, looked, place)
    found: list[UUID] = []
    at, many = 0, _HOURS_FIRST
    while at < len(hours) and len(found) < limit:
        some = cast(hours[at : at + many], ARRAY(_Time))
        these = func.unnest(some).table_valued(column("hour", _Time)).render_derived("these")
        hour = these.c.hour
        inside = (
            _newest(looked, place, limit - len(found))
            .where(_Event.event_time >= hour, _Event.event_time < hour + _HOUR)
            .lateral("inside")
        )
        query = (
            select(inside.c.request)
            .select_from(these)
            .join(inside, true())
            .order_by(inside.c.event_time.desc(), inside.c.request.desc())
            .limit(limit - len(found))
        )
        found += await session.scalars(query)
        at, many = at + many, many * _HOURS_MORE
    return found


async def _hours(session: AsyncSession, looked: Looked, place: _Place | None) -> list[datetime]:
    """Newest first."""
    filters, row = looked.filters, UsageHourRow
    conditions: list[Any] = [
        row.tenant_id == filters.tenant_id,
        row.series_id == any_(cast(list(looked.series or ()), ARRAY(Integer))),
        row.sequences > 0,
    ]
    if filters.start is not None:
        conditions.append(row.hour > filters.start - _HOUR)
    if filters.end is not None:
        conditions.append(row.hour < filters.end)
    if place is not None:
        conditions.append(row.hour <= place.event_time)
    query = select(row.hour).where(*conditions).distinct().order_by(row.hour.desc())
    return list(await session.scalars(query))
