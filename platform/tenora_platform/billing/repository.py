"""Queries over prices, and over what has been rated by them. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.billing.price_lists import (
    HELD_METERS,
    METERS,
    Meter,
    PriceList,
    Scope,
    Status,
    Tier,
    Tiers,
)
from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.db import in_slices
from tenora_platform.locks import lock, lock_shared
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.tables import (
    OccupancyEventRow,
    UsageDayRow,
    UsageEventRow,
    UsageSeriesRow,
)

_LOCK = "tenora:prices"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which price lists; None: any."""

    now: datetime
    q: str | None = None
    tenant: str | None = None
    plan: str | None = None
    model: str | None = None
    adapter: str | None = None
    currency: str | None = None
    status: Status | None = None
    sort: str = "effective_from"


async def lock_prices(session: AsyncSession, *, to_change: bool) -> None:
    """Until the transaction ends: many may rate, or one may change prices. So no event is left
    unrated beside a price list that was being added."""
    await (lock if to_change else lock_shared)(session, _LOCK)


async def price_lists(
    session: AsyncSession,
    first: datetime | None = None,
    last: datetime | None = None,
    *,
    tenants: Collection[str] | None = None,
) -> list[PriceList]:
    """All price lists, or those in force at some time from `first` to `last`, or those that could
    hold for these tenants; oldest first. None that was withdrawn, not even read: its dates may be
    from before they were bounded."""
    query = (
        select(PriceVersionRow)
        .where(PriceVersionRow.withdrawn_at.is_(None))
        .order_by(PriceVersionRow.effective_from, PriceVersionRow.id)
    )
    if last is not None:
        query = query.where(PriceVersionRow.effective_from <= last)
    if first is not None:
        query = query.where(
            or_(PriceVersionRow.effective_to.is_(None), PriceVersionRow.effective_to > first)
        )
    if tenants is not None:
        query = query.where(
            or_(PriceVersionRow.tenant_id.is_(None), PriceVersionRow.tenant_id.in_(tenants))
        )
    return await _with_tiers(session, [row async for (row,) in in_slices(session, query)])


async def page_of_price_lists(
    session: AsyncSession, chosen: Chosen, *, after: str | None, limit: int | None
) -> list[tuple[PriceList, str | None, str | None]]:
    """Each with the names of its tenant and adapter, by when they begin; one more than `limit`.
    None that was withdrawn."""
    row = PriceVersionRow
    query = (
        select(row, TenantRow.name, AdapterRow.name)
        .outerjoin(TenantRow, TenantRow.id == row.tenant_id)
        .outerjoin(AdapterRow, AdapterRow.id == row.adapter_id)
        .where(row.withdrawn_at.is_(None))
        .where(*_chosen(chosen))
    )
    begins = select(row.effective_from).where(row.id == after).scalar_subquery()
    _, descending = paging.split(chosen.sort)
    order = paging.Order(row.effective_from.expression, row.id.expression, descending, begins)
    page = paging.page(query, order, after=after, limit=limit)
    rows = [row async for row in in_slices(session, page)]
    lists = await _with_tiers(session, [found[0] for found in rows])
    return [(price, found[1], found[2]) for price, found in zip(lists, rows, strict=True)]


def _chosen(chosen: Chosen) -> list[ColumnElement[bool]]:
    row = PriceVersionRow
    searched = (TenantRow.name, AdapterRow.name, row.id, row.tenant_id, row.plan, row.model)
    found = paging.having(chosen.q, *searched)
    for column, value in (
        (row.tenant_id, chosen.tenant),
        (row.plan, chosen.plan),
        (row.model, chosen.model),
        (row.adapter_id, chosen.adapter),
        (row.currency, chosen.currency),
    ):
        if value is not None:
            found.append(column == value)
    if chosen.status == "announced":
        found.append(row.effective_from > chosen.now)
    if chosen.status in ("in_force", "ended"):
        ended = row.effective_to.is_not(None) & (row.effective_to <= chosen.now)
        found += [ended] if chosen.status == "ended" else [row.effective_from <= chosen.now, ~ended]
    return found


async def _with_tiers(
    session: AsyncSession, versions: Sequence[PriceVersionRow]
) -> list[PriceList]:
    tiers = await _tiers(session, [version.id for version in versions])
    return [
        PriceList(
            id=row.id,
            no=row.no,
            scope=Scope(row.adapter_id, row.tenant_id, row.plan, row.model),
            currency=row.currency,
            effective_from=row.effective_from,
            effective_to=row.effective_to,
            tiers=tiers[row.id],
            minimum=row.minimum,
            included=row.included,
        )
        for row in versions
    ]


async def _tiers(
    session: AsyncSession, version_ids: Sequence[str]
) -> dict[str, dict[tuple[Meter, str], Tiers]]:
    """By version, meter and class. Columns and not rows: there may be thousands."""
    found: dict[str, dict[tuple[Meter, str], Tiers]] = {of: {} for of in version_ids}
    prices = (
        select(
            PriceRow.price_version_id,
            PriceRow.meter,
            PriceRow.class_,
            PriceRow.from_quantity,
            PriceRow.per_million,
        )
        .where(PriceRow.price_version_id.in_(version_ids), PriceRow.meter.in_(METERS))
        .order_by(PriceRow.from_quantity)
    )
    async for version_id, meter, class_, quantity, price in in_slices(session, prices):
        of_version, key = found[version_id], (cast("Meter", meter), class_)
        of_version[key] = (*of_version.get(key, ()), Tier(quantity, price))
    return found


async def owner_of(session: AsyncSession, adapter_id: str) -> str | None:
    """The tenant whose adapter this is or was."""
    found: str | None = await session.scalar(
        select(AdapterRow.tenant_id).where(AdapterRow.id == adapter_id)
    )
    return found


async def names_of_adapters(session: AsyncSession, adapter_ids: Collection[str]) -> dict[str, str]:
    query = select(AdapterRow.id, AdapterRow.name).where(AdapterRow.id.in_(adapter_ids))
    return dict((await session.execute(query)).all())


async def last_rated(
    session: AsyncSession, scope: Scope, first: datetime, end: datetime | None
) -> datetime | None:
    """When the last rated event of this scope from `first` until before `end` (None: for ever)
    ended; None if there is none. The days' sums say where to look."""
    rated = _rated_days().where(UsageDayRow.day >= first.astimezone(UTC).date())
    if end is not None:
        rated = rated.where(UsageDayRow.day <= end.astimezone(UTC).date())
    if scope.model is not None:
        rated = rated.where(UsageSeriesRow.model == scope.model)
    if scope.plan is not None:
        rated = rated.where(UsageSeriesRow.plan == scope.plan)
    if scope.tenant_id is not None:
        rated = rated.where(UsageDayRow.tenant_id == scope.tenant_id)
    if scope.adapter_id is not None:
        versions = select(AdapterVersionRow.id).where(
            AdapterVersionRow.adapter_id == scope.adapter_id
        )
        rated = rated.where(
            (UsageSeriesRow.adapter_id == scope.adapter_id)
            | UsageSeriesRow.adapter_version_id.in_(versions)
        )
    days = await session.execute(
        rated.join(TenantRow, TenantRow.id == UsageDayRow.tenant_id)
        .with_only_columns(
            UsageDayRow.day,
            func.array_agg(TenantRow.no.distinct()),
            func.array_agg(UsageDayRow.series_id.distinct()),
        )
        .group_by(UsageDayRow.day)
        .order_by(UsageDayRow.day.desc())
    )
    for day, tenants, series in days.all():
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        until = begin + timedelta(days=1)
        span = (max(begin, first), until if end is None else min(until, end))
        found = await _last_event(session, tenants, series, *span)
        if found is not None:
            return found
    return None


async def _last_event(
    session: AsyncSession,
    tenants: Sequence[int],
    series: Sequence[int],
    first: datetime,
    end: datetime,
) -> datetime | None:
    """Of those that have been priced, of requests and of occupancy."""
    ends = []
    for row, time in (
        (UsageEventRow, UsageEventRow.event_time),
        (OccupancyEventRow, OccupancyEventRow.ends),
    ):
        query = select(func.max(time)).where(
            row.tenant_no.in_(tenants),
            row.series_id.in_(series),
            time >= first,
            time < end,
            row.price_version_no > 0,
        )
        ends.append(await session.scalar(query))
    return max((each for each in ends if each is not None), default=None)


async def has_rated(session: AsyncSession, price: PriceList) -> bool:
    query = _rated_days().where(
        UsageDayRow.price_version_no == price.no,
        UsageDayRow.day >= price.effective_from.astimezone(UTC).date(),
    )
    return await session.scalar(query.with_only_columns(UsageDayRow.day).limit(1)) is not None


def _rated_days() -> Select[UsageDayRow]:
    """Sums of what has been priced, and is still there."""
    there = UsageDayRow.sequences + sum(getattr(UsageDayRow, meter) for meter in HELD_METERS)
    return (
        select(UsageDayRow)
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageDayRow.series_id)
        .where(UsageDayRow.price_version_no > 0, there > 0)
    )
