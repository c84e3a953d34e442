"""Storage: each adapter version's bytes in the object store, booked by the finished day (UTC) from
the registry's history: from when it was accepted until it was deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from hashlib import sha256
from uuid import UUID

import structlog
from sqlalchemy import func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_platform.db import Database, plain_reason
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.tenants.plan_history import PlanHistory, plan_histories
from tenora_platform.usage.occupancy import Occupancy, OccupancyBooks
from tenora_platform.usage.series import Series
from tenora_platform.usage.sink import Told
from tenora_platform.usage.tables import OccupancyEventRow, UsageSeriesRow

EVERY_S = 600.0
CATCH_UP_DAYS = 62
"""So far back days are booked that no worker has come to. What has never been booked begins
yesterday: an installation is not asked for the time before it had prices for this."""

_BATCH = 500
_DAY = timedelta(days=1)
_KB_H = 1000 * 3600 * 10**6  # byte-microseconds in a kilobyte-hour
_MICRO = timedelta(microseconds=1)
_log = structlog.get_logger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class StorageDays:
    """Of a worker; several do no harm to each other: an id is made of version and day."""

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
        query = (
            select(func.max(OccupancyEventRow.ends))
            .join(UsageSeriesRow, UsageSeriesRow.id == OccupancyEventRow.series_id)
            .where(UsageSeriesRow.kind == "stored")
        )
        async with self._db.admin_session() as session:
            last: datetime | None = await session.scalar(query)
        earliest = yesterday - timedelta(days=CATCH_UP_DAYS)
        return (
            yesterday - _DAY if last is None else max(last.astimezone(UTC).date() - _DAY, earliest)
        )

    async def _book(self, day: date, model: str) -> int:
        after, count = "", 0
        while True:
            async with self._db.admin_session() as session:
                rows = await _stored_on(session, day, after)
            if not rows:
                return count
            after = rows[-1][0].id
            found = [_occupancy(version, plans, day, model) for version, plans in rows]
            events = [each for each in found if each is not None]
            charges = await self._books.store(events)
            if charges and self._told is not None:
                await self._told(charges)
            count += len(events)


async def _stored_on(
    session: AsyncSession, day: date, after: str
) -> list[tuple[AdapterVersionRow, PlanHistory]]:
    """Versions that were there at some time of the day, with their tenants' plans."""
    begins = datetime.combine(day, time(), UTC)
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
    found = (await session.scalars(query)).all()
    plans = await plan_histories(session, {version.tenant_id for version in found})
    return [(version, plans[version.tenant_id]) for version in found]


def _occupancy(
    version: AdapterVersionRow, plans: PlanHistory, day: date, model: str
) -> Occupancy | None:
    """Of one version in one day; what is less than a kB hour is carried to the next."""
    assert version.activated_at is not None  # asked for
    first = datetime.combine(day, time(), UTC)
    since = version.activated_at.astimezone(UTC)
    until = first + _DAY
    if version.revoked_at is not None:
        until = min(until, version.revoked_at.astimezone(UTC))
    begins = max(first, since)

    def kb_hours(at: datetime) -> int:
        return version.bytes * ((at - since) // _MICRO) // _KB_H

    quantity = kb_hours(until) - kb_hours(begins)
    if quantity <= 0:
        return None
    series = Series(
        tenant_id=version.tenant_id,
        kind="stored",
        model=model,
        class_="",
        adapter_id=version.adapter_id,
        adapter_version_id=version.id,
        adapter_digest=version.digest,
        plan=plans.at(until - _MICRO),
    )
    bits = sha256(f"stored {version.id} {day.isoformat()}".encode()).digest()[:16]
    return Occupancy(UUID(bytes=bits), series, "stored", quantity, begins, until - _MICRO)
