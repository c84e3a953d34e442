"""Has reconciliations done: those that were asked for, one each hour, and a full one each day; one
at a time in the whole installation. What is compared is the proof's affair."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.bootstrap import database_urls
from tenora_platform.db import libpq_url, plain_reason
from tenora_platform.installation import Installation
from tenora_platform.live.wakes import Wake
from tenora_platform.locks import try_lock
from tenora_platform.reconciliation import repository
from tenora_platform.reconciliation.child import ReconciliationFailedError, run_task
from tenora_platform.reconciliation.tables import ReconciliationRow
from tenora_platform.reconciliation.task import Mode, Result, Scope, Settled, Task
from tenora_platform.reconciliation.told import Told
from tenora_platform.state import AppState

RECENT_EVERY = timedelta(hours=1)
FULL_EVERY = timedelta(days=1)
FIRST_AFTER_S = 300.0
"""A process that has just started has other things to do; so have those that live shortly."""
KEPT = timedelta(days=90)
BY_ITSELF = "schedule"
_LOOK_EVERY_S = 15.0
_DEAF_EVERY_S = 1.0
"""Without word of what is asked for."""
_TELL_EVERY_S = 30.0
_LOCK = "tenora:reconciliation"
_log = structlog.get_logger(__name__)


class Reconciler:
    """One runs in each worker; a lock keeps them apart."""

    def __init__(self, state: AppState, wake: Wake | None = None) -> None:
        """`wake`: what was asked for."""
        self._state = state
        self._wake = wake or Wake()
        self._db = state.db
        self._began_s = time.monotonic()
        self._told_s = 0.0

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                while await self.run_once():
                    pass
                await self._tell()
            except (SQLAlchemyError, OSError) as error:
                _log.warning("reconciliation could not run", reason=plain_reason(error))
            await self._wake.wait(_LOOK_EVERY_S, _DEAF_EVERY_S)

    async def run_once(self) -> bool:
        """Whatever is asked for or due, unless another worker is at it; whether there was any."""
        async with self._db.admin_session() as guard:
            if not await try_lock(guard, _LOCK):
                return False
            async with self._db.admin_session() as session:
                await repository.orphans_wait_again(session)
                await self._ask_what_is_due(session)
                row = await repository.next_waiting(session)
                if row is None:
                    return False
                row.state, row.started_at = "running", datetime.now(UTC)
            await self._do(row)
            return True

    async def _ask_what_is_due(self, session: AsyncSession) -> None:
        if time.monotonic() - self._began_s < FIRST_AFTER_S:
            return
        now = datetime.now(UTC)
        due: tuple[tuple[Mode, timedelta], ...] = (("full", FULL_EVERY), ("recent", RECENT_EVERY))
        for mode, every in due:
            last = await repository.last_of(session, BY_ITSELF, mode)
            if last is None or now - last >= every:
                await repository.ask(session, Scope(mode=mode), BY_ITSELF)
                await repository.forget(session, KEPT)
                return

    async def _do(self, row: ReconciliationRow) -> None:
        scope = Scope(
            mode="recent" if row.mode == "recent" else "full",
            tenant_id=row.only_tenant,
            first=row.first_day,
            last=row.last_day,
        )
        try:
            result = await run_task(self._task(scope))
        except ReconciliationFailedError as error:
            _log.error("reconciliation failed", id=row.id, reason=str(error))
            await self._close(row.id, None, str(error))
            return
        log = _log.error if result.total else _log.info
        log("books reconciled", id=row.id, events=result.looked.events, found=result.differences)
        await self._close(row.id, result, None)

    def _task(self, scope: Scope) -> Task:
        settings = self._state.settings
        assert settings.database_url is not None  # an AppState is not made without
        urls = database_urls(
            settings.database_url, self._state.secret, Installation(settings.installation)
        )
        return Task(
            database_url=libpq_url(urls.admin),
            secret=self._state.secret.root,
            object_store=settings.object_store_url,
            scope=scope,
        )

    async def _close(self, run_id: str, result: Result | None, error: str | None) -> None:
        async with self._db.admin_session() as session:
            row = await session.get_one(ReconciliationRow, run_id)
            row.finished_at = datetime.now(UTC)
            row.state = "failed" if result is None else "done"
            row.error = error
            if result is not None:
                row.difference_count = result.total
                row.result = kept_form(result)
                row.settled_through = result.settled.through
                await repository.keep_settled(session, result.settled)
        self._told_s = 0.0

    async def _tell(self) -> None:
        """What the last run and the canary found, whichever worker did it. What a full run found
        stands until the next one: others do not look at all of it."""
        if time.monotonic() - self._told_s < _TELL_EVERY_S:
            return
        self._told_s = time.monotonic()
        async with self._db.admin_session() as session:
            row = await repository.last_done(session)
            full = await repository.last_done(session, mode="full")
            round_ = await repository.last_round(session)
        told = Told()
        if row is not None and row.finished_at is not None:
            told = Told(
                reconciled_s=row.finished_at.timestamp(),
                differences=max(each.difference_count or 0 for each in (row, full or row)),
                took_s=float((row.result or {}).get("took_s", 0.0)),
            )
        if round_ is not None:
            checks = {check["name"]: check["problem"] is None for check in round_.checks}
            told = msgspec.structs.replace(told, canary_s=round_.at.timestamp(), canary=checks)
        self._state.proof.told = told


def kept_form(result: Result) -> dict[str, object]:
    """As JSON; without what is settled, which has a place of its own."""
    plain = msgspec.to_builtins(msgspec.structs.replace(result, settled=Settled()))
    assert isinstance(plain, dict)
    del plain["settled"]
    return plain
