"""Keeps the months of usage events: makes those to come, and lets those go that are older than the
operator wants in the database, once they are archived. Sums stay for ever."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, date, datetime
from uuid import UUID

import structlog
from obstore.exceptions import BaseError
from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database, plain_reason
from tenora_platform.locks import try_lock
from tenora_platform.operations.metrics import Metrics
from tenora_platform.registry.store_identity import StoreIdentity
from tenora_platform.usage.archive import ArchiveError, UsageArchive

EVERY_S = 3600.0
AHEAD = 2
"""Months that are made before they begin."""

MONTHS_LOCK = "tenora:usage-months"
_PART = re.compile(r"usage_events_(\d{4})_(\d\d)")
_MONTHS = text(
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_events'::regclass"
)
_STRAYS = text("SELECT count(*) FROM (SELECT FROM usage_events WHERE request >= :end) AS strays")
_OF_CUT_HOURS = text(
    """
    SELECT 1
      FROM credit_grants AS g JOIN tenants AS t ON t.id = g.tenant_id,
           LATERAL (VALUES (g.created_at), (g.expires_at)) AS bound (at),
           LATERAL (SELECT date_trunc('hour', bound.at, 'UTC')) AS cut (hour)
     WHERE bound.at > cut.hour AND EXISTS (
           SELECT FROM usage_events AS e
            WHERE e.request >= :low AND e.request < :high AND e.tenant_no = t.no
              AND e.event_time >= cut.hour AND e.event_time < cut.hour + interval '1 hour')
     LIMIT 1
    """
)
_log = structlog.get_logger(__name__)


def after(month: date, months: int) -> date:
    """The first day of the month so many later."""
    year, number = divmod(month.year * 12 + month.month - 1 + months, 12)
    return date(year, number + 1, 1)


def bound(month: date) -> UUID:
    """The first request of a month: ids begin with their time in ms."""
    moment = datetime(month.year, month.month, 1, tzinfo=UTC)
    return UUID(int=int(moment.timestamp() * 1000) << 80)


async def months_of(session: AsyncSession) -> list[date]:
    """Those that the database has a partition of, oldest first."""
    found = [month_of(name) for name in await session.scalars(_MONTHS)]
    return sorted(month for month in found if month is not None)


def month_of(partition: str) -> date | None:
    """The month that the partition of this name is of, None for one of other events."""
    found = _PART.fullmatch(partition.rpartition(".")[2])
    return None if found is None else date(int(found[1]), int(found[2]), 1)


class UsageMonths:
    """One runs in each worker; a lock keeps them apart."""

    def __init__(
        self,
        db: Database,
        archive: UsageArchive,
        store: StoreIdentity,
        metrics: Metrics,
        retention_months: int,
    ) -> None:
        """`store` knows whether the archive's files lie where this database's are."""
        self._db = db
        self._archive = archive
        self._store = store
        self._metrics = metrics
        self._retention = retention_months

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                await self.run_once(datetime.now(UTC).date())
            except (SQLAlchemyError, ArchiveError, BaseError, OSError) as error:
                self._metrics.usage_upkeep_failures.labels(type(error).__name__).inc()
                reason = plain_reason(error)
                _log.error(
                    "monthly partitions of usage could not be maintained",
                    reason=reason,
                    again_in_s=EVERY_S,
                )
            await asyncio.sleep(EVERY_S)

    async def run_once(self, today: date) -> list[date]:
        """Returns the months that left the database."""
        this = today.replace(day=1)
        async with self._db.patient().admin_session() as session:
            if not await try_lock(session, MONTHS_LOCK):
                return []
            for ahead in range(AHEAD + 1):
                await session.scalar(select(func.create_usage_month(after(this, ahead))))
            months = await months_of(session)
            strays = await session.scalar(_STRAYS, {"end": bound(after(this, AHEAD + 1))})
            self._metrics.usage_months.set(len(months))
            self._metrics.usage_strays.set(strays or 0)
        if not self._retention:
            return []
        old = [month for month in months if month < after(this, -self._retention)]
        return [month for month in old if await self._let_go(month)]

    async def _let_go(self, month: date) -> bool:
        """Archive it and drop it, unless it is still needed as it is. What would be archived in a
        store that is not this database's would be missing once the right one is back."""
        low, high = bound(month), bound(after(month, 1))
        async with self._db.patient().admin_session() as session:
            if not await try_lock(session, MONTHS_LOCK) or await _is_needed(session, low, high):
                return False
            if not await self._store.agrees():
                return False
            rows = await self._archive.write(month, low, high)
            await session.scalar(select(func.drop_usage_month(month)))
        _log.info("usage archived", month=f"{month:%Y-%m}", events=rows)
        return True


async def _is_needed(session: AsyncSession, low: UUID, high: UUID) -> bool:
    """Whether one of these events waits for a price; or is of an hour in which its tenant's credit
    begins or ends, for the parts of that hour are told by events alone."""
    between = {"low": low, "high": high}
    waiting = text("SELECT 1 FROM unrated_events WHERE request >= :low AND request < :high LIMIT 1")
    if await session.scalar(waiting, between):
        return True
    return await session.scalar(_OF_CUT_HOURS, between) is not None
