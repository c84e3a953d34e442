"""WaitSampler: asks the engine every few seconds what has been waited and served, and adds what is
new to the minutes. Of a worker; of several one at a time looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.telemetry import TelemetryStats
from tenora_platform import locks
from tenora_platform.db import Base, Database, plain_reason
from tenora_platform.waits.deltas import Totals
from tenora_platform.waits.tables import (
    GapMinuteRow,
    RequestWaitPartsRow,
    RequestWaitRow,
    ShareMinuteRow,
    WaitMarkRow,
    WaitMinuteRow,
)

EVERY_S = 5.0
SWEEP_EVERY_S = 3600.0
REQUEST_DAYS = 7
"""For which single requests' waits are kept; the minutes are for the days that settings say."""

_MARK_DAYS = 1
_ROWS_AT_ONCE = 1000
_log = structlog.get_logger(__name__)


class WaitSampler:
    def __init__(self, engine: EngineClient, db: Database, history_days: int) -> None:
        self._engine = engine
        self._db = db
        self._history_days = history_days
        self._swept_s = -SWEEP_EVERY_S

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                if self._engine.ready:
                    await self.run_once()
                if time.monotonic() - self._swept_s >= SWEEP_EVERY_S:
                    await self.sweep()
                    self._swept_s = time.monotonic()
            except (EngineError, SQLAlchemyError, OSError) as error:
                _log.warning("wait times could not be sampled", reason=plain_reason(error))
            await asyncio.sleep(EVERY_S)

    async def run_once(self) -> bool:
        """Whether it was our turn."""
        async with self._db.admin_session() as session:
            # Asked under the lock: an older answer must not follow a newer one.
            if not await locks.try_lock(session, "waits"):
                return False
            stats = await self._engine.stats()
            await keep(session, stats.telemetry, datetime.now(UTC))
            return True

    async def sweep(self) -> None:
        """Forget what is old."""
        now = datetime.now(UTC)
        history = now - timedelta(days=self._history_days)
        async with self._db.admin_session() as session:
            for table in (WaitMinuteRow, ShareMinuteRow, GapMinuteRow):
                await session.execute(delete(table).where(table.minute < history))
            for of_requests in (RequestWaitRow, RequestWaitPartsRow):
                old = of_requests.kept_at < now - timedelta(days=REQUEST_DAYS)
                await session.execute(delete(of_requests).where(old))
            gone = WaitMarkRow.seen_at < now - timedelta(days=_MARK_DAYS)
            await session.execute(delete(WaitMarkRow).where(gone))


async def keep(session: AsyncSession, telemetry: TelemetryStats, now: datetime) -> None:
    """Add what is new since the last time, in the same transaction as it is marked as added. An
    engine that does not name its start is too old to be asked."""
    if not telemetry.started:
        return
    mark = await session.get(WaitMarkRow, telemetry.started)
    totals = Totals.of(telemetry)
    new = totals.since(Totals.stored(mark.totals if mark else None))
    minute = now.replace(second=0, microsecond=0)
    await _add(session, WaitMinuteRow, ("seconds", "sequences"), _wait_rows(minute, new))
    await _add(session, ShareMinuteRow, ("service",), _share_rows(minute, new))
    await _note_gaps(session, telemetry)
    if mark is None or new.waits or new.shares:
        kept = insert(WaitMarkRow).values(started=telemetry.started, totals=totals.as_json())
        changed = {"totals": kept.excluded.totals, "seen_at": func.now()}
        await session.execute(kept.on_conflict_do_update(index_elements=("started",), set_=changed))


def _wait_rows(minute: datetime, new: Totals) -> list[dict[str, Any]]:
    return [
        {
            "minute": minute,
            "waiter": waiter,
            "class": name,
            "cause": cause,
            "other": other,
            "seconds": seconds,
            "sequences": sequences,
        }
        for (name, waiter, cause, other), (seconds, sequences) in new.waits.items()
    ]


def _share_rows(minute: datetime, new: Totals) -> list[dict[str, Any]]:
    return [
        {"minute": minute, "served": served, "class": name, "service": service}
        for (name, served), service in new.shares.items()
    ]


async def _add(
    session: AsyncSession,
    row: type[Base],
    sums: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    table = row.__table__
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        new = insert(row).values([dict(each) for each in rows[first : first + _ROWS_AT_ONCE]])
        changed = {name: table.c[name] + new.excluded[name] for name in sums}
        await session.execute(
            new.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)
        )


async def _note_gaps(session: AsyncSession, telemetry: TelemetryStats) -> None:
    """The engine tells of the last minutes each time: what is nearer to its bound stays."""
    rows = [
        {
            "minute": datetime.fromtimestamp(each.begins_s, UTC),
            "class": each.service_class,
            "gap": each.gap,
            "bound": each.bound,
        }
        for each in telemetry.gap_minutes
    ]
    if not rows:
        return
    new = insert(GapMinuteRow).values(rows)
    nearer = new.excluded.gap * GapMinuteRow.bound > GapMinuteRow.gap * new.excluded.bound
    await session.execute(
        new.on_conflict_do_update(
            index_elements=list(GapMinuteRow.__table__.primary_key),
            set_={"gap": new.excluded.gap, "bound": new.excluded.bound},
            where=nearer,
        )
    )
