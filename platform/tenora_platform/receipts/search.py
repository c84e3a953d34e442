"""Finds requests among usage events: newest first, page by page, a million of them or ten. A
request is found by any of its sequences. It knows no prices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    DateTime,
    Integer,
    Select,
    and_,
    any_,
    cast,
    column,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.tables import UsageEventRow, UsageHourRow, UsageSeriesRow

Status = Literal["completed", "aborted", "failed"]
REASONS: dict[Status, tuple[str, ...]] = {
    "completed": ("stop", "length"),
    "aborted": ("abort",),
    "failed": ("error",),
}
_WORSE: dict[Status, tuple[str, ...]] = {
    "completed": ("abort", "error"),
    "aborted": ("error",),
    "failed": (),
}
_HOUR = timedelta(hours=1)
_HOURS_FIRST = 8  # that are looked through together; then four times as many, and so on
_HOURS_MORE = 4
_Time = DateTime(timezone=True)
_Event = UsageEventRow
_Other = aliased(UsageEventRow)


@dataclass(frozen=True)
class Filters:
    """What was asked for; None: whatever."""

    tenant_id: str
    start: datetime | None = None
    end: datetime | None = None  # exclusive
    api_key: str | None = None
    adapter: str | None = None  # name or name@3
    class_: str | None = None  # that served
    status: Status | None = None
    min_cost: Decimal | None = None
    max_cost: Decimal | None = None

    def of(self, tenant_id: str) -> Filters:
        return replace(self, tenant_id=tenant_id)


@dataclass(frozen=True)
class _Place:
    """Of a request in the order: when the sequence that it is found by had ended."""

    event_time: datetime
    request: UUID


@dataclass(frozen=True)
class _Search:
    """What a sequence has to be for its request to be found."""

    filters: Filters
    series: Sequence[int] | None
    place: _Place | None = None

    def fits(self, event: Any) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if self.filters.status is not None:
            found.append(event.finish_reason.in_(REASONS[self.filters.status]))
        if self.series is not None:
            found.append(event.series_id == any_(cast(list(self.series), ARRAY(Integer))))
        return found

    def query(self, limit: int) -> Select[datetime, UUID]:
        """(when, which), newest first."""
        number = select(TenantRow.no).where(TenantRow.id == self.filters.tenant_id)
        conditions = [
            _Event.tenant_no == number.scalar_subquery(),
            *self.fits(_Event),
            self._is_first(),
            *self._is_no_worse(),
            *_in_window(self.filters),
            *_costs(self.filters),
        ]
        if self.place is not None:
            here = (self.place.event_time, self.place.request)
            conditions.append(_Event.event_time <= here[0])  # what the index knows
            conditions.append(tuple_(_Event.event_time, _Event.request) < here)
        return (
            select(_Event.event_time, _Event.request)
            .where(*conditions)
            .order_by(_Event.event_time.desc(), _Event.request.desc())
            .limit(limit)
        )

    def _is_first(self) -> ColumnElement[bool]:
        """Each request once: by the first of its sequences that fit."""
        earlier = and_(_Other.sequence < _Event.sequence, *self.fits(_Other))
        return or_(_Event.sequence == 0, ~_another(earlier))

    def _is_no_worse(self) -> list[ColumnElement[bool]]:
        status = self.filters.status
        if status is None or not _WORSE[status]:
            return []
        return [~_another(_Other.finish_reason.in_(_WORSE[status]))]


async def search(
    session: AsyncSession, filters: Filters, after: UUID | None, limit: int
) -> list[UUID] | None:
    """At most `limit` requests behind `after`; None if that is not among them."""
    narrowed = any((filters.api_key, filters.adapter, filters.class_))
    series = await _series(session, filters) if narrowed else None
    asked = _Search(filters, series)
    if after is not None:
        place = await _place(session, asked, after)
        if place is None:
            return None
        asked = _Search(filters, series, place)
    if series is not None:
        return await _by_hours(session, asked, limit)
    return [request for _, request in await session.execute(asked.query(limit))]


async def _series(session: AsyncSession, filters: Filters) -> list[int]:
    conditions = [UsageSeriesRow.tenant_id == filters.tenant_id]
    if filters.api_key is not None:
        conditions.append(UsageSeriesRow.api_key_id == filters.api_key)
    if filters.class_ is not None:
        conditions.append(UsageSeriesRow.class_ == filters.class_)
    if filters.adapter is not None:
        versions = _versions(filters.tenant_id, filters.adapter)
        conditions.append(UsageSeriesRow.adapter_version_id.in_(versions))
    return list(await session.scalars(select(UsageSeriesRow.id).where(*conditions)))


def _versions(tenant_id: str, adapter: str) -> Select[str]:
    """Of the adapter of that name, and of those of that name that were deleted."""
    name, _, number = adapter.partition("@")
    query = (
        select(AdapterVersionRow.id)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(AdapterRow.tenant_id == tenant_id, AdapterRow.name == name)
    )
    if not number:
        return query
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
    return query.where(AdapterVersionRow.number == wanted)


async def _place(session: AsyncSession, asked: _Search, request: UUID) -> _Place | None:
    query = (
        select(_Event.event_time)
        .where(_Event.request == request, *asked.fits(_Event))
        .order_by(_Event.sequence)
        .limit(1)
    )
    found = await session.scalar(query)
    return None if found is None else _Place(found, request)


async def _by_hours(session: AsyncSession, asked: _Search, limit: int) -> list[UUID]:
    """Looks only into the hours in which these series were used, which the sums know: what is rare
    is found without reading all that is not."""
    hours = await _hours(session, asked)
    found: list[UUID] = []
    at, many = 0, _HOURS_FIRST
    while at < len(hours) and len(found) < limit:
        some = cast(hours[at : at + many], ARRAY(_Time))
        looked = func.unnest(some).table_valued(column("hour", _Time)).render_derived("looked")
        hour = looked.c.hour
        inside = (
            asked.query(limit - len(found))
            .where(_Event.event_time >= hour, _Event.event_time < hour + _HOUR)
            .lateral("inside")
        )
        query = (
            select(inside.c.request)
            .select_from(looked)
            .join(inside, true())
            .order_by(inside.c.event_time.desc(), inside.c.request.desc())
            .limit(limit - len(found))
        )
        found += await session.scalars(query)
        at, many = at + many, many * _HOURS_MORE
    return found


async def _hours(session: AsyncSession, asked: _Search) -> list[datetime]:
    """Newest first."""
    filters, row = asked.filters, UsageHourRow
    conditions = [
        row.tenant_id == filters.tenant_id,
        row.series_id == any_(cast(list(asked.series or ()), ARRAY(Integer))),
        row.sequences > 0,
    ]
    if filters.start is not None:
        conditions.append(row.hour > filters.start - _HOUR)
    if filters.end is not None:
        conditions.append(row.hour < filters.end)
    if asked.place is not None:
        conditions.append(row.hour <= asked.place.event_time)
    query = select(row.hour).where(*conditions).distinct().order_by(row.hour.desc())
    return list(await session.scalars(query))


def _another(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether there is such a sequence of the same request."""
    return exists().where(_Other.request == _Event.request, condition)


def _in_window(filters: Filters) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.start is not None:
        found.append(_Event.event_time >= filters.start)
    if filters.end is not None:
        found.append(_Event.event_time < filters.end)
    return found


def _costs(filters: Filters) -> list[ColumnElement[bool]]:
    """Of the whole request, as far as it has a price."""
    total = (
        select(func.coalesce(func.sum(_Other.amount), 0))
        .where(_Other.request == _Event.request)
        .scalar_subquery()
    )
    found: list[ColumnElement[bool]] = []
    if filters.min_cost is not None:
        found.append(total >= filters.min_cost)
    if filters.max_cost is not None:
        found.append(total <= filters.max_cost)
    return found
