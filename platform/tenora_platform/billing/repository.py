"""Queries over prices, rated lines and events that wait for a price. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from sqlalchemy import delete, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS, Meter, PriceList, Scope, Tier
from tenora_platform.billing.rating import Billable, Rating
from tenora_platform.billing.tables import (
    PriceRow,
    PriceVersionRow,
    RatedLineRow,
    UnratedEventRow,
)
from tenora_platform.locks import lock, lock_shared
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.usage.tables import UsageEventRow

_LOCK = "tenora:prices"


async def lock_prices(session: AsyncSession, *, to_change: bool) -> None:
    """Until the transaction ends: many may rate, or one may change prices. So no event is left
    unrated beside a price list that was being added."""
    await (lock if to_change else lock_shared)(session, _LOCK)


async def price_lists(
    session: AsyncSession, first: datetime | None = None, last: datetime | None = None
) -> list[PriceList]:
    """All price lists, or those in force at some time from `first` to `last`; oldest first. None
    that was withdrawn, not even read: its dates may be from before they were bounded."""
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
    versions = (await session.scalars(query)).all()
    ids = [version.id for version in versions]
    prices = await session.scalars(
        select(PriceRow)
        .where(PriceRow.price_version_id.in_(ids), PriceRow.meter.in_(METERS))
        .order_by(PriceRow.from_quantity)
    )
    tiers: dict[str, dict[tuple[Meter, str], tuple[Tier, ...]]] = {of: {} for of in ids}
    for row in prices:
        of_version, key = tiers[row.price_version_id], (cast("Meter", row.meter), row.class_)
        of_version[key] = (*of_version.get(key, ()), Tier(row.from_quantity, row.per_million))
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


async def owner_of(session: AsyncSession, adapter_id: str) -> str | None:
    """The tenant whose adapter this is or was."""
    found: str | None = await session.scalar(
        select(AdapterRow.tenant_id).where(AdapterRow.id == adapter_id)
    )
    return found


async def last_rated(
    session: AsyncSession, scope: Scope, first: datetime, end: datetime | None
) -> datetime | None:
    """When the last rated event of this scope from `first` until before `end` (None: for ever)
    ended; None if there is none."""
    query = (
        select(UsageEventRow.event_time)
        .where(
            UsageEventRow.event_time >= first,
            exists().where(RatedLineRow.event_id == UsageEventRow.event_id),
        )
        .order_by(UsageEventRow.event_time.desc())
        .limit(1)
    )
    if end is not None:
        query = query.where(UsageEventRow.event_time < end)
    if scope.model is not None:
        query = query.where(UsageEventRow.model == scope.model)
    if scope.plan is not None:
        query = query.where(UsageEventRow.plan == scope.plan)
    if scope.tenant_id is not None:
        query = query.where(UsageEventRow.tenant_id == scope.tenant_id)
    if scope.adapter_id is not None:
        versions = select(AdapterVersionRow.id).where(
            AdapterVersionRow.adapter_id == scope.adapter_id
        )
        query = query.where(UsageEventRow.adapter_version_id.in_(versions))
    found: datetime | None = await session.scalar(query)
    return found


async def has_rated(session: AsyncSession, price: PriceList) -> bool:
    """Looked for in the time that it holds, which has an index."""
    query = (
        select(RatedLineRow.event_id)
        .join(UsageEventRow, UsageEventRow.event_id == RatedLineRow.event_id)
        .where(
            RatedLineRow.price_version_id == price.id,
            UsageEventRow.event_time >= price.effective_from,
        )
        .limit(1)
    )
    if price.effective_to is not None:
        query = query.where(UsageEventRow.event_time < price.effective_to)
    return await session.scalar(query) is not None


async def add_ratings(session: AsyncSession, ratings: Sequence[Rating]) -> None:
    values = [
        {
            "event_id": rating.event.event_id,
            "tenant_id": rating.event.tenant_id,
            "meter": line.meter,
            "quantity": line.quantity,
            "per_million": line.parts[0].per_million,
            "price_version_id": rating.price.id,
            "currency": rating.price.currency,
            "amount": line.amount,
        }
        for rating in ratings
        if rating.price is not None
        for line in rating.lines
    ]
    if values:
        await session.execute(insert(RatedLineRow), values)


async def add_unrated(session: AsyncSession, unrated: Sequence[tuple[Billable, str]]) -> None:
    """(event, why) of events that cannot be rated; those that wait already are left as they are."""
    if not unrated:
        return
    values = [
        {"event_id": event.event_id, "tenant_id": event.tenant_id, "reason": reason}
        for event, reason in unrated
    ]
    await session.execute(insert(UnratedEventRow).values(values).on_conflict_do_nothing())


async def take_unrated(session: AsyncSession, after: str, limit: int) -> list[Billable]:
    """Events that wait for a price, by id, locked until the transaction ends; those that another
    worker has are left out."""
    query = (
        select(UsageEventRow)
        .join(UnratedEventRow, UnratedEventRow.event_id == UsageEventRow.event_id)
        .where(UnratedEventRow.event_id > after)
        .order_by(UnratedEventRow.event_id)
        .limit(limit)
        .with_for_update(of=UnratedEventRow, skip_locked=True)
    )
    return [billable(row) for row in await session.scalars(query)]


async def next_unrated(session: AsyncSession, after: str) -> str | None:
    """The id of the first event that waits after this one."""
    query = select(func.min(UnratedEventRow.event_id)).where(UnratedEventRow.event_id > after)
    found: str | None = await session.scalar(query)
    return found


async def count_unrated(session: AsyncSession) -> int:
    return await session.scalar(select(func.count()).select_from(UnratedEventRow)) or 0


async def last_unrated(
    session: AsyncSession, limit: int
) -> list[tuple[UnratedEventRow, UsageEventRow]]:
    """The newest that wait, with the events themselves."""
    query = (
        select(UnratedEventRow, UsageEventRow)
        .join(UsageEventRow, UsageEventRow.event_id == UnratedEventRow.event_id)
        .order_by(UnratedEventRow.since.desc())
        .limit(limit)
    )
    return [(waiting, event) for waiting, event in await session.execute(query)]


async def drop_unrated(session: AsyncSession, event_ids: Sequence[str]) -> None:
    await session.execute(delete(UnratedEventRow).where(UnratedEventRow.event_id.in_(event_ids)))


def billable(row: UsageEventRow) -> Billable:
    return Billable(
        event_id=row.event_id,
        tenant_id=row.tenant_id,
        model=row.model,
        plan=row.plan,
        event_time=row.event_time,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        class_=row.tier,
        adapter_id=None,
        cold_loads=0,
    )
