"""Reads what was waited and served. The sums by minute are the operator's; of a single request its
tenant reads the causes, and the operator whose doing they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import in_slices
from tenora_platform.tenants.tables import PlanRow, TenantRow
from tenora_platform.waits.tables import (
    GapMinuteRow,
    RequestWaitPartsRow,
    RequestWaitRow,
    ShareMinuteRow,
    WaitMinuteRow,
)

Group = Literal["tenant", "class", "cause", "other"]
GROUPS: Mapping[Group, ColumnElement[Any]] = {
    "tenant": WaitMinuteRow.waiter.expression,
    "class": WaitMinuteRow.class_.expression,
    "cause": WaitMinuteRow.cause.expression,
    "other": WaitMinuteRow.other.expression,
}
POINTS_MAX = 300
WAITS_MAX = 10_000


@dataclass(frozen=True)
class Waited:
    """Sequences that waited; what is not grouped by is None."""

    groups: Mapping[Group, str]
    seconds: float
    sequences: int


@dataclass(frozen=True)
class Served:
    tenant: str
    class_: str
    service: float


@dataclass(frozen=True)
class Gap:
    """`at`: the beginning of its part of the range."""

    at: datetime
    class_: str
    gap: float
    bound: float


@dataclass(frozen=True)
class Known:
    """A tenant as it is now."""

    name: str
    weight: float


@dataclass(frozen=True)
class AllWaited:
    """The most seconds first; of all of them how many there are, and their seconds."""

    most: Sequence[Waited]
    total: int
    seconds: float


async def waited(
    session: AsyncSession, start: datetime, end: datetime, groups: Sequence[Group]
) -> AllWaited:
    """Whole minutes that begin in [start, end), the one of `start` included; of the groups that
    waited at all, WAITS_MAX at most."""
    columns = [GROUPS[name] for name in groups]
    seconds = func.sum(WaitMinuteRow.seconds)
    query = (
        select(
            *columns,
            seconds,
            func.sum(WaitMinuteRow.sequences),
            func.count().over(),
            func.sum(seconds).over(),
        )
        .where(WaitMinuteRow.minute >= _minute(start), WaitMinuteRow.minute < end)
        .group_by(*columns)
        .having(seconds > 0)
        .order_by(seconds.desc(), *columns)
        .limit(WAITS_MAX)
    )
    most, total, all_s = [], 0, 0.0
    async for *found, summed, sequences, count, sum_s in in_slices(session, query):
        most.append(Waited(dict(zip(groups, found, strict=True)), summed, sequences))
        total, all_s = count, sum_s
    return AllWaited(most, total, all_s)


async def waited_for_others(
    session: AsyncSession, start: datetime, end: datetime
) -> dict[tuple[str, str], float]:
    """By class and tenant, of all that waited, the seconds that other tenants were the cause of."""
    others = func.sum(WaitMinuteRow.seconds).filter(WaitMinuteRow.other != "")
    query = (
        select(WaitMinuteRow.class_, WaitMinuteRow.waiter, func.coalesce(others, 0.0))
        .where(WaitMinuteRow.minute >= _minute(start), WaitMinuteRow.minute < end)
        .group_by(WaitMinuteRow.class_, WaitMinuteRow.waiter)
    )
    return {
        (class_, waiter): seconds async for class_, waiter, seconds in in_slices(session, query)
    }


async def served(session: AsyncSession, start: datetime, end: datetime) -> list[Served]:
    """As `waited`, by tenant and class."""
    service = func.sum(ShareMinuteRow.service)
    query = (
        select(ShareMinuteRow.served, ShareMinuteRow.class_, service)
        .where(ShareMinuteRow.minute >= _minute(start), ShareMinuteRow.minute < end)
        .group_by(ShareMinuteRow.served, ShareMinuteRow.class_)
        .order_by(service.desc(), ShareMinuteRow.served)
    )
    return [Served(*found) async for found in in_slices(session, query)]


async def gaps(session: AsyncSession, start: datetime, end: datetime) -> list[Gap]:
    """By class and time, of POINTS_MAX parts of the range at most; of each part the moment at which
    the gap was nearest to its bound."""
    minutes = max(-(-(end - start) // timedelta(minutes=POINTS_MAX)), 1)
    width = text(f"interval '{minutes} minutes'")
    part = func.date_bin(width, GapMinuteRow.minute, _minute(start)).label("part")
    # By its name: with parameters of its own it would be another expression.
    place: ColumnElement[datetime] = literal_column("part")
    nearness = GapMinuteRow.gap / GapMinuteRow.bound
    query = (
        select(part, GapMinuteRow.class_, GapMinuteRow.gap, GapMinuteRow.bound)
        .where(GapMinuteRow.minute >= _minute(start), GapMinuteRow.minute < end)
        .ext(distinct_on(GapMinuteRow.class_, place))
        .order_by(GapMinuteRow.class_, place, nearness.desc())
    )
    return [Gap(*found) for found in await session.execute(query)]


async def known(session: AsyncSession, tenants: Iterable[str]) -> dict[str, Known]:
    """Those of these ids that are tenants."""
    query = (
        select(TenantRow.id, TenantRow.name, PlanRow.weight)
        .join(PlanRow, PlanRow.name == TenantRow.plan)
        .where(TenantRow.id.in_(set(tenants)))
    )
    return {id_: Known(name, weight) async for id_, name, weight in in_slices(session, query)}


async def causes_of(session: AsyncSession, request: UUID) -> dict[int, dict[str, float]]:
    """Milliseconds by cause of a request's sequences, by their places; of those that are kept."""
    query = select(RequestWaitRow).where(RequestWaitRow.request == request)
    return {row.sequence: row.causes for row in await session.scalars(query)}


async def parts_of(session: AsyncSession, request: UUID) -> dict[int, list[tuple[str, str, float]]]:
    """As `causes_of`, with the other tenants."""
    query = select(RequestWaitPartsRow).where(RequestWaitPartsRow.request == request)
    return {
        row.sequence: [(cause, other, ms) for cause, other, ms in row.parts]
        for row in await session.scalars(query)
    }


def _minute(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)
