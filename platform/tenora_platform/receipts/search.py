"""Finds requests among usage events, page by page, a million of them or ten: newest first, or in
another order (`ranking`). It knows no prices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
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

from tenora_platform.errors import BadRequestError
from tenora_platform.receipts.filters import (
    Filters,
    Looked,
    Near,
    in_window,
    looked_for,
    of_tenants,
)
from tenora_platform.receipts.ranking import ranked
from tenora_platform.usage.reading import floor
from tenora_platform.usage.slices import HOUR, Hour, Span, sizes, sliced, windows
from tenora_platform.usage.tables import UsageEventRow, UsageHourRow

RANKED_DAYS = timedelta(days=31)
"""What is put in another order than by time is of so long, where no `start` is named."""
RANKED_MAX = 250_000
"""Sequences that are put in another order than by time; of more, a shorter time has to be named."""
ALL_TENANTS_DAYS = timedelta(days=7)
"""And so is what is searched over all tenants, in whatever order: no index has them by time."""
_LONGEST = timedelta(days=1)  # that a request takes: it is called by when it came
_CLOCKS = timedelta(minutes=10)  # by which those of two processes differ
_ANYWHERE = Near()
_Time = DateTime(timezone=True)
_Event = UsageEventRow


@dataclass(frozen=True, slots=True)
class After:
    """A request of the search, or (with its `sequence`) where it stopped."""

    request: UUID
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """`stopped`: the search has not come to its end, and goes on behind here."""

    requests: list[UUID]
    stopped: After | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a sequence in the order: when it had ended. `is_stop`: a search has looked through all of
    its hour."""

    event_time: datetime
    request: UUID
    is_stop: bool


async def search(
    session: AsyncSession, filters: Filters, after: After | None, limit: int
) -> Found | None:
    """At most `limit` requests behind `after`; None if that is not among them. Raises
    BadRequestError for too many to be put in order."""
    looked = await looked_for(session, _within(filters))
    place = None
    if after is not None:
        place = await _place(session, looked, after)
        if place is None:
            return None
    if filters.sort != "newest":
        await _require_few(session, looked.filters)
        request = None if after is None else after.request
        return Found(await ranked(session, looked, request, limit))
    if filters.tenant_id is None:
        return await _of_all(session, looked, place, limit)
    if filters.selective:
        return await _by_hours(session, looked, place, limit)
    return Found([each for _, each in await session.execute(_newest(looked, place, limit))])


def _within(filters: Filters) -> Filters:
    """With the start of what is looked through."""
    if filters.start is not None or (filters.sort == "newest" and filters.tenant_id is not None):
        return filters
    length = ALL_TENANTS_DAYS if filters.tenant_id is None else RANKED_DAYS
    return replace(filters, start=(filters.end or datetime.now(UTC)) - length)


async def _place(session: AsyncSession, looked: Looked, after: After) -> _Place | None:
    query = (
        select(_Event.event_time, _Event.request)
        .where(_Event.request == after.request)
        .order_by(_Event.sequence)
        .limit(1)
    )
    if after.sequence is None:
        query = query.where(*looked.fits(_Event))
    else:
        query = query.where(_Event.sequence == after.sequence)
    found = (await session.execute(query)).first()
    return None if found is None else _Place(*found, is_stop=after.sequence is not None)


async def _require_few(session: AsyncSession, filters: Filters) -> None:
    """Raises BadRequestError."""
    these = select(_Event.sequence).where(*of_tenants(_Event, filters), *in_window(filters))
    counted = select(func.count()).select_from(these.limit(RANKED_MAX + 1).subquery())
    if (await session.scalar(counted) or 0) > RANKED_MAX:
        raise BadRequestError(
            f"The time asked for has more than {RANKED_MAX:,} usage events, too many to sort by "
            f"{filters.sort.removeprefix('-')}. Choose a later start or an earlier end, or sort by "
            "time (sort=newest).",
            param="start",
            code="range_too_long",
        )


def _behind(place: _Place | None) -> list[ColumnElement[bool]]:
    if place is None:
        return []
    here = (place.event_time, place.request)
    # The first is what the index knows.
    return [_Event.event_time <= here[0], tuple_(_Event.event_time, _Event.request) < here]


def _newest(
    looked: Looked, place: _Place | None, limit: int, near: Near = _ANYWHERE
) -> Select[datetime, UUID]:
    """(when, which), newest first."""
    return (
        select(_Event.event_time, _Event.request)
        .where(*looked.conditions(near), *_behind(place))
        .order_by(_Event.event_time.desc(), _Event.request.desc())
        .limit(limit)
    )


async def _of_all(session: AsyncSession, looked: Looked, place: _Place | None, limit: int) -> Found:
    """Of all tenants, the last that came first: the key's own order. In slices."""
    found: list[UUID] = []
    bounds = _came(looked.filters)
    at = None if place is None else place.request
    for many in sizes():
        behind = bounds if at is None else [*bounds, _Event.request < at]
        further = select(_Event.request, _Event.sequence).where(*behind)
        ordered = further.order_by(_Event.request.desc()).offset(many - 1).limit(1)
        end = (await session.execute(ordered)).first()
        inside = behind if end is None else [*behind, _Event.request >= end.request]
        near = Near(first=None if end is None else end.request, last=at)
        query = (
            select(_Event.request)
            .where(*inside, *looked.conditions(near))
            .order_by(_Event.request.desc())
            .limit(limit - len(found))
        )
        found += await session.scalars(query)
        if end is None or len(found) == limit:
            return Found(found)
        at = end.request
    assert end is not None
    return Found(found, After(end.request, end.sequence))


def _came(filters: Filters) -> list[ColumnElement[bool]]:
    """When requests must have come that ended in the window, by their keys."""
    found: list[ColumnElement[bool]] = []
    if filters.start is not None:
        found.append(_Event.request >= _first_key(filters.start - _LONGEST))
    if filters.end is not None:
        found.append(_Event.request < _first_key(filters.end + _CLOCKS))
    return found


def _first_key(at: datetime) -> UUID:
    return UUID(int=max(int(at.timestamp() * 1000), 0) << 80)


async def _by_hours(
    session: AsyncSession, looked: Looked, place: _Place | None, limit: int
) -> Found:
    """Looks only into the hours in which these series were used, which the sums know: what is rare
    is found without reading all that is not. In slices, so that one answer has its bound."""
    found: list[UUID] = []
    async for part in sliced(_hours(session, looked, place)):
        query = _in_spans(looked, place, part.spans, limit - len(found))
        found += await session.scalars(query)
        if len(found) == limit:
            break
        if part.stops:
            oldest = await _oldest(session, looked.filters, part.spans[0].begins)
            return Found(found, oldest)
    return Found(found)


def _in_spans(looked: Looked, place: _Place | None, spans: list[Span], limit: int) -> Select[UUID]:
    """`spans`: oldest first."""
    begins, ends = (cast(list(each), ARRAY(_Time)) for each in zip(*spans, strict=True))
    these = func.unnest(begins, ends).table_valued(column("begins", _Time), column("ends", _Time))
    these = these.render_derived("these")
    near = Near(start=spans[0].begins, end=spans[-1].ends)
    inside = (
        _newest(looked, place, limit, near)
        .where(_Event.event_time >= these.c.begins, _Event.event_time < these.c.ends)
        .lateral("inside")
    )
    return (
        select(inside.c.request)
        .select_from(these)
        .join(inside, true())
        .order_by(inside.c.event_time.desc(), inside.c.request.desc())
        .limit(limit)
    )


async def _oldest(session: AsyncSession, filters: Filters, hour: datetime) -> After | None:
    """Where to go on behind an hour; None where its month, and so all before, is archived."""
    query = (
        select(_Event.request, _Event.sequence)
        .where(*of_tenants(_Event, filters))
        .where(_Event.event_time >= hour, _Event.event_time < hour + HOUR)
        .order_by(_Event.event_time, _Event.request)
        .limit(1)
    )
    found = (await session.execute(query)).first()
    return None if found is None else After(*found)


async def _hours(
    session: AsyncSession, looked: Looked, place: _Place | None
) -> AsyncIterator[Hour]:
    """Newest first."""
    filters, row = looked.filters, UsageHourRow
    own = row.tenant_id == filters.tenant_id
    first = await session.scalar(select(func.min(row.hour)).where(own))
    last = await session.scalar(select(func.max(row.hour)).where(own))
    if first is None or last is None:
        return
    begin = first if filters.start is None else max(first, filters.start - HOUR)
    until = last + HOUR if filters.end is None else min(last + HOUR, filters.end)
    if place is not None:
        hour = floor(place.event_time, "hour")
        until = min(until, hour if place.is_stop else hour + HOUR)
    query = select(row.hour, cast(func.sum(row.sequences), BigInteger)).where(
        own, row.sequences > 0
    )
    query = query.group_by(row.hour).order_by(row.hour.desc())
    if looked.series is not None:
        series = cast(list(looked.series), ARRAY(Integer))
        query = query.having(func.bool_or(row.series_id == any_(series)))
    for since, end in windows(begin, until, newest_first=True):
        for found in await session.execute(query.where(row.hour >= since, row.hour < end)):
            yield Hour(*found)
