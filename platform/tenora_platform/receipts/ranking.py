"""Requests that are found, in another order than by time: what took longest, what cost most. What a
request counts by is of all its sequences: the slowest one's time, the sum of their costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import REAL, ColumnElement, Numeric, Subquery, case, cast, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from tenora_platform.receipts.filters import (
    MARGIN,
    Filters,
    Looked,
    Near,
    Sort,
    of_tenants,
)
from tenora_platform.usage.tables import UsageEventRow

_Event = UsageEventRow
_First = aliased(UsageEventRow)
_Rest = aliased(UsageEventRow)
_COLUMNS: Mapping[Sort, str] = {
    "-queue": "queue_ms",
    "-ttft": "first_token_ms",
    "-duration": "duration_ms",
    "-cost": "amount",
}


def _of(sort: Sort, event: Any) -> ColumnElement[Any]:
    """What one sequence counts by."""
    if sort != "-tpot":
        found: ColumnElement[Any] = getattr(event, _COLUMNS[sort])
        return found
    decode_ms = event.duration_ms - event.first_token_ms
    return cast(decode_ms / func.nullif(event.output_tokens - 1, 0), REAL)


async def ranked(
    session: AsyncSession, looked: Looked, after: UUID | None, limit: int
) -> list[UUID]:
    """The greatest first, at most `limit` behind `after`; of equal ones the newest. What has no
    first token, or no second one, has no place in an order by it."""
    sort = looked.filters.sort
    rest = _rest(looked.filters)
    near = Near(start=looked.filters.start, end=looked.filters.end)
    value = _value(sort, rest)
    query = (
        select(_Event.request)
        .outerjoin(rest, rest.c.request == _Event.request)
        .where(*looked.conditions(near), value.is_not(None))
        .order_by(value.desc(), _Event.request.desc())
        .limit(limit)
    )
    if after is not None:
        whole = select(_total(sort, _First)).where(_First.request == after)
        here = await session.scalar(whole)
        place = cast(here, Numeric(38, 12) if sort == "-cost" else REAL)
        query = query.where(tuple_(value, _Event.request) < tuple_(place, after))
    return list(await session.scalars(query))


def _rest(filters: Filters) -> Subquery:
    """What the sequences behind the first come to: of the few requests that have more than one, so
    that all others need no second look."""
    conditions = [_Rest.sequence > 0, *of_tenants(_Rest, filters)]
    if filters.start is not None:
        conditions.append(_Rest.event_time >= filters.start - MARGIN)
    if filters.end is not None:
        conditions.append(_Rest.event_time < filters.end + MARGIN)
    total = _total(filters.sort, _Rest).label("value")
    query = select(_Rest.request, total).where(*conditions)
    return query.group_by(_Rest.request).subquery("rest")


def _total(sort: Sort, event: Any) -> ColumnElement[Any]:
    """Of several sequences."""
    of = _of(sort, event)
    return func.coalesce(func.sum(of), 0) if sort == "-cost" else func.max(of)


def _value(sort: Sort, rest: Subquery) -> ColumnElement[Any]:
    first = (
        select(_of(sort, _First))
        .where(_First.request == _Event.request, _First.sequence == 0)
        .scalar_subquery()
    )
    own = case((_Event.sequence == 0, _of(sort, _Event)), else_=first)
    if sort == "-cost":
        return func.coalesce(own, 0) + func.coalesce(rest.c.value, 0)
    return func.greatest(own, rest.c.value)
