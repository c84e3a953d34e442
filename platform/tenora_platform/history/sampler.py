"""Takes over, every few seconds, what the engine and the API have counted, into the minute and the
hour that it is. What it has read up to is stored with it, so each count is taken over once,
whichever worker does it. It decides nothing and shows nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import structlog
from redis.exceptions import RedisError
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats
from tenora_platform.history.answers import Answers
from tenora_platform.history.deltas import (
    Totals,
    engine_since,
    is_same_engine,
    restarts_since,
    served_since,
    totals_of,
)
from tenora_platform.history.merging import merge
from tenora_platform.history.tables import (
    EngineHourRow,
    EngineMinuteRow,
    HistoryMarkRow,
    ServiceHourRow,
    ServiceMinuteRow,
)
from tenora_platform.locks import try_lock
from tenora_platform.processes.presence import Process
from tenora_platform.state import AppState
from tenora_platform.tenants.repository import erased_among

EVERY_S = 5.0
SWEPT_S = 600.0
_LOCK = "tenora:history"
_MARK = "engine"
_NEW_S = 120.0
"""What an engine that began before that has counted, and nobody has taken over, is not of now."""
_ANSWERS_BACK = 120
"""Minutes of answers that are looked through after a silence; Redis keeps them for a day."""
_log = structlog.get_logger(__name__)
_Engine = TypeVar("_Engine", EngineMinuteRow, EngineHourRow)


class HistorySampler:
    """Of a worker. Several take turns by a lock; each sample is one transaction."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._swept_s = 0.0

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.sample()
            if time.monotonic() - self._swept_s > SWEPT_S:
                await self.sweep()
                self._swept_s = time.monotonic()
            await asyncio.sleep(EVERY_S)

    async def sample(self, now: datetime | None = None) -> bool:
        """Once; False where another does it at the moment. Raises what the database raises."""
        now = now or datetime.now(UTC)
        stats = await self._stats()
        processes = self._state.presence.others
        async with self._state.db.admin_session() as session:
            if not await try_lock(session, _LOCK):
                return False
            mark = await session.get(HistoryMarkRow, _MARK)
            before = _totals(mark)
            totals, restarts = _read(stats, processes, before)
            measures = _look(stats) | {"restarts": restarts}
            if stats is not None and (before is not None or _is_new(stats)):
                measures |= engine_since(totals, before or Totals())
                await _add_served(session, now, totals, before or Totals())
            for row in (
                await _engine(session, EngineMinuteRow, _minute(now)),
                await _engine(session, EngineHourRow, _hour(now)),
            ):
                merge(row, measures)
            await self._add_answers(session, now, mark.at if mark is not None else now)
            if mark is None:
                mark = HistoryMarkRow(name=_MARK)
                session.add(mark)
            mark.at, mark.data = now, msgspec.to_builtins(totals)
        return True

    async def sweep(self) -> None:
        """Forget what is older than the operator wants it."""
        settings, now = self._state.settings, datetime.now(UTC)
        minutes = now - timedelta(days=settings.history_minutes_days)
        hours = now - timedelta(days=settings.history_hours_days)
        async with self._state.db.admin_session() as session:
            for table, before in (
                (ServiceMinuteRow, minutes),
                (EngineMinuteRow, minutes),
                (ServiceHourRow, hours),
                (EngineHourRow, hours),
            ):
                await session.execute(delete(table).where(table.at < before))

    async def _stats(self) -> EngineStats | None:
        if not self._state.engine.ready:
            return None
        try:
            return await self._state.engine.stats()
        except EngineError:
            return None  # a minute in which it was not ready

    async def _add_answers(self, session: AsyncSession, now: datetime, since: datetime) -> None:
        """What Redis has counted in a minute replaces what it had before: so a minute may be read
        as often as one likes. A Redis that began anew says less, and is not believed."""
        first = max(_minute(since) - timedelta(minutes=1), _minute(now) - _LONGEST)
        minute = first
        while minute <= now:
            try:
                answers = await self._state.answers.of_minute(int(minute.timestamp()))
            except RedisError as error:
                _log.warning("answer counts could not be read", reason=str(error))
                return
            await _set_answers(session, minute, answers)
            minute += timedelta(minutes=1)


_LONGEST = timedelta(minutes=_ANSWERS_BACK)


def _totals(mark: HistoryMarkRow | None) -> Totals | None:
    if mark is None:
        return None
    try:
        return msgspec.convert(mark.data, Totals)
    except msgspec.ValidationError:  # of another version
        _log.warning("history restarts: its position could not be read")
        return None


def _read(
    stats: EngineStats | None, processes: list[Process] | None, before: Totals | None
) -> tuple[Totals, dict[str, int]]:
    """The totals now, and which parts were started again since before. What is not known stays as
    it was."""
    known = before or Totals()
    restarts = dict(known.restarts)
    if processes is not None:
        said = {
            f"{each.id}/{part}": count
            for each in processes
            for part, count in each.restarts.items()
        }
        restarts = said or restarts
    totals = msgspec.structs.replace(known, restarts=restarts)
    if stats is not None:
        totals = totals_of(stats, restarts)
    return totals, restarts_since(restarts, known.restarts)


def _is_new(stats: EngineStats) -> bool:
    return stats.telemetry.counted_s < _NEW_S


def _look(stats: EngineStats | None) -> dict[str, Any]:
    """The levels of this moment."""
    if stats is None:
        return {"samples": 1}
    pool = stats.pool
    oldest = max((queue.oldest_wait_s for queue in stats.telemetry.queues), default=0.0)
    adapters: dict[str, int] = {}
    for each in stats.adapters:
        adapters[each.state] = adapters.get(each.state, 0) + 1
    return {
        "samples": 1,
        "ready": 1,
        "running": stats.running,
        "running_max": stats.running,
        "waiting": stats.waiting,
        "waiting_max": stats.waiting,
        "oldest_wait_s_max": oldest,
        "free_pages": pool.free_pages,
        "live_kv_pages": pool.live_kv_pages,
        "cached_kv_pages": pool.cached_kv_pages,
        "adapter_pages": pool.adapter_pages,
        "adapters": adapters,
        "step_ms_max": stats.last_step_ms,
    }


async def _add_served(session: AsyncSession, now: datetime, totals: Totals, before: Totals) -> None:
    if not is_same_engine(totals, before):
        _log.info("history belongs to another engine", since_s=totals.since_s)
    found = served_since(totals, before)
    if not found:
        return
    erased = await erased_among(session, (each.tenant_id for each in found))
    for rows in (
        await _service(session, ServiceMinuteRow, _minute(now)),
        await _service(session, ServiceHourRow, _hour(now)),
    ):
        for each in found:
            if each.tenant_id in erased:
                continue
            merge(rows.of(each.tenant_id, each.service_class), each.measures)


async def _set_answers(session: AsyncSession, minute: datetime, answers: Answers) -> None:
    if not answers:
        return
    minutes = await _service(session, ServiceMinuteRow, minute)
    hours = await _service(session, ServiceHourRow, _hour(minute))
    erased = await erased_among(session, (tenant_id for tenant_id, _ in answers))
    for (tenant_id, class_), counts in answers.items():
        if tenant_id in erased:
            continue
        known = minutes.of(tenant_id, class_)
        more = {
            status: count - known.answers.get(status, 0)
            for status, count in counts.items()
            if count > known.answers.get(status, 0)
        }
        if more:
            merge(known, {"answers": more})
            merge(hours.of(tenant_id, class_), {"answers": more})


class _Rows:
    """Of one table and time, by tenant and class; those that are missing are made."""

    def __init__(
        self,
        session: AsyncSession,
        table: type[ServiceMinuteRow] | type[ServiceHourRow],
        at: datetime,
        known: Mapping[tuple[str, str], ServiceMinuteRow | ServiceHourRow],
    ) -> None:
        self._session = session
        self._table = table
        self._at = at
        self._known = dict(known)

    def of(self, tenant_id: str, class_: str) -> ServiceMinuteRow | ServiceHourRow:
        row = self._known.get((tenant_id, class_))
        if row is None:
            row = self._table(at=self._at, tenant_id=tenant_id, class_=class_, **_EMPTY)
            self._session.add(row)
            self._known[tenant_id, class_] = row
        return row


_EMPTY: Mapping[str, Any] = {"answers": {}}


async def _service(
    session: AsyncSession, table: type[ServiceMinuteRow] | type[ServiceHourRow], at: datetime
) -> _Rows:
    found: list[ServiceMinuteRow | ServiceHourRow] = list(
        await session.scalars(select(table).where(table.at == at))
    )
    return _Rows(session, table, at, {(row.tenant_id, row.class_): row for row in found})


async def _engine(session: AsyncSession, table: type[_Engine], at: datetime) -> _Engine:
    row = await session.get(table, at)
    if row is None:
        row = table(at=at)
        session.add(row)
    return row


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _hour(moment: datetime) -> datetime:
    return _minute(moment).replace(minute=0)
