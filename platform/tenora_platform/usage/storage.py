"""Storage: the bytes of a tenant's adapter versions in the object store, booked by the finished day
(UTC) from the registry's history: each from when it was accepted until it was deleted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from uuid import UUID

import structlog
from sqlalchemy import func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_platform.billing.price_lists import ANY_CLASS, Prices, Scope
from tenora_platform.billing.repository import price_lists
from tenora_platform.db import Database, plain_reason
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.tenants.plan_history import plan_histories
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.occupancy import Occupancy, OccupancyBooks
from tenora_platform.usage.series import Series
from tenora_platform.usage.sink import Told
from tenora_platform.usage.tables import OccupancyEventRow, UsageSeriesRow

EVERY_S = 600.0
CATCH_UP_DAYS = 62
"""So far back days are booked that no worker has come to. What has never been booked begins
yesterday: an installation is not asked for the time before it had prices for this."""

_BATCH = 5000  # versions
_TENANTS = 500
_DAY = timedelta(days=1)
_KB_H = 1000 * 3600 * 10**6  # byte-microseconds in a kilobyte-hour
_MICRO = timedelta(microseconds=1)
_log = structlog.get_logger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class StorageDays:
    """Of a worker; several do no harm to each other: an id is made of tenant and day."""

    def __init__(
        self,
        db: Database,
        engine: EngineClient,
        *,
        told: Told | None = None,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._db = db
        self._engine = engine
        self._books = OccupancyBooks(db)
        self._told = told
        self._clock = clock
        self._done: date | None = None  # the last day that is booked, as far as this process knows

    async def run(self) -> None:
        """Works for ever; cancel it to stop. Whose base model it is, the engine says."""
        while True:
            try:
                if self._engine.ready:
                    await self.run_once(self._engine.model.id)
            except (EngineError, SQLAlchemyError, OSError) as error:
                _log.warning(
                    "usage of the object store could not be recorded", reason=plain_reason(error)
                )
            await asyncio.sleep(EVERY_S)

    async def run_once(self, model: str) -> int:
        """Book the finished days that are not booked; returns how many events they have."""
        yesterday = self._clock().date() - _DAY
        if self._done is None:
            self._done = await self._booked(yesterday)
        count = 0
        while self._done < yesterday:
            day = self._done + _DAY
            count += await self._book(day, model)
            self._done = day
        return count

    async def _booked(self, yesterday: date) -> date:
        """The last day of which some is booked is looked at again: it may not be all."""
        query = select(func.max(OccupancyEventRow.ends)).where(OccupancyEventRow.meter == "stored")
        async with self._db.admin_session() as session:
            last: datetime | None = await session.scalar(query)
        earliest = yesterday - timedelta(days=CATCH_UP_DAYS)
        return (
            yesterday - _DAY if last is None else max(last.astimezone(UTC).date() - _DAY, earliest)
        )

    async def _book(self, day: date, model: str) -> int:
        async with self._db.admin_session() as session:
            lists = await price_lists(session, _last_moment(day), _last_moment(day))
            apart = {each.scope.adapter_id for each in lists} - {None}
            held = await _held_on(session, day, model, Prices(lists), apart)
        count = 0
        for at in range(0, len(held), _TENANTS):
            batch = held[at : at + _TENANTS]
            async with self._db.admin_session() as session:
                events = await _not_booked(session, batch, day, apart)
            charges = await self._books.store(events)
            if charges and self._told is not None:
                await self._told(charges)
            count += len(events)
        return count


@dataclass(frozen=True, slots=True)
class _Held:
    """What a tenant kept on a day, in kB hours. `adapter_id`: of an adapter with prices of its own,
    None for all others together."""

    series: Series
    quantity: int


async def _held_on(
    session: AsyncSession, day: date, model: str, prices: Prices, apart: Collection[str | None]
) -> list[_Held]:
    """By tenant, and by those adapters that are `apart`. What costs nothing is not written down: it
    would be a row for every tenant and day, of which nobody is charged."""
    at = _last_moment(day)
    quantities: Counter[tuple[str, str | None]] = Counter()
    async for version in _stored_on(session, day):
        adapter = version.adapter_id if version.adapter_id in apart else None
        quantities[version.tenant_id, adapter] += kb_hours(version, day)
    plans = await plan_histories(session, {tenant for tenant, _ in quantities})
    held = []
    for (tenant, adapter), quantity in sorted(quantities.items(), key=_in_order):
        plan = plans[tenant].at(at)
        price = prices.choose(Scope(adapter, tenant, plan, model), at)
        tiers = None if price is None else price.tiers_of("stored", ANY_CLASS)
        is_free = tiers is not None and not any(tier.per_million for tier in tiers)
        if quantity and not is_free:
            held.append(_Held(_series(tenant, adapter, plan, model), quantity))
    return held


def _in_order(item: tuple[tuple[str, str | None], int]) -> tuple[str, str]:
    (tenant, adapter), _ = item
    return tenant, adapter or ""


def _series(tenant: str, adapter: str | None, plan: str, model: str) -> Series:
    return Series(
        tenant_id=tenant, kind="stored", model=model, class_="", adapter_id=adapter, plan=plan
    )


async def _stored_on(session: AsyncSession, day: date) -> AsyncIterator[AdapterVersionRow]:
    """Versions that were there at some time of the day."""
    begins, after = datetime.combine(day, time(), UTC), ""
    while True:
        query = (
            select(AdapterVersionRow)
            .where(
                AdapterVersionRow.id > after,
                AdapterVersionRow.activated_at < begins + _DAY,
                or_(AdapterVersionRow.revoked_at.is_(None), AdapterVersionRow.revoked_at > begins),
            )
            .order_by(AdapterVersionRow.id)
            .limit(_BATCH)
        )
        rows = (await session.scalars(query)).all()
        for row in rows:
            yield row
        if len(rows) < _BATCH:
            return
        after = rows[-1].id
        session.expunge_all()


def kb_hours(version: AdapterVersionRow, day: date) -> int:
    """Of one version in one day; what is less than a kB hour is carried to the next."""
    assert version.activated_at is not None  # asked for
    first = datetime.combine(day, time(), UTC)
    since = version.activated_at.astimezone(UTC)
    until = first + _DAY
    if version.revoked_at is not None:
        until = min(until, version.revoked_at.astimezone(UTC))
    begins = max(first, since)

    def until_then(at: datetime) -> int:
        return version.bytes * ((at - since) // _MICRO) // _KB_H

    return max(until_then(until) - until_then(begins), 0)


async def _not_booked(
    session: AsyncSession, held: Sequence[_Held], day: date, apart: Collection[str | None]
) -> list[Occupancy]:
    """What the day's events lack of it: all, or what a version of before, which booked each
    adapter's version by itself, had not come to."""
    begins, ends = datetime.combine(day, time(), UTC), _last_moment(day)
    numbers = select(TenantRow.no).where(TenantRow.id.in_({each.series.tenant_id for each in held}))
    query = (
        select(UsageSeriesRow.tenant_id, UsageSeriesRow.adapter_id, OccupancyEventRow.quantity)
        .join(UsageSeriesRow, UsageSeriesRow.id == OccupancyEventRow.series_id)
        .where(
            OccupancyEventRow.tenant_no.in_(numbers),
            OccupancyEventRow.ends >= begins,
            OccupancyEventRow.ends <= ends,
            OccupancyEventRow.meter == "stored",
        )
    )
    booked: Counter[tuple[str, str | None]] = Counter()
    for tenant, adapter, quantity in await session.execute(query):
        booked[tenant, adapter if adapter in apart else None] += quantity
    events = []
    for each in held:
        of = (each.series.tenant_id, each.series.adapter_id)
        if each.quantity > booked[of]:
            name = f"stored {of[0]} {of[1] or ''} {day.isoformat()} {booked[of]}"
            id_ = UUID(bytes=sha256(name.encode()).digest()[:16])
            quantity = each.quantity - booked[of]
            events.append(Occupancy(id_, each.series, "stored", quantity, begins, ends))
    return events


def _last_moment(day: date) -> datetime:
    return datetime.combine(day + _DAY, time(), UTC) - _MICRO
