"""RolloutKeeper: moves staged roll-outs on when a stage has had its time, and back when a version
does worse than those before it. What it must know is in the database and Redis; without Redis it
does neither, and says so."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog
from redis.exceptions import RedisError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.printable import brief
from tenora_platform.evaluations.comparison import compared
from tenora_platform.events import repository as events
from tenora_platform.live.wakes import Wake
from tenora_platform.locks import try_lock
from tenora_platform.outages import is_own_fault, log_failure
from tenora_platform.registry.tables import AdapterRow
from tenora_platform.rollouts import repository
from tenora_platform.rollouts.aliases import end_rollout, serving_versions
from tenora_platform.rollouts.changes import AliasWriter, Change
from tenora_platform.rollouts.guard import Evidence, breach
from tenora_platform.rollouts.outcomes import OfAlias
from tenora_platform.rollouts.schemas import Guard
from tenora_platform.rollouts.shadows import sweep
from tenora_platform.rollouts.stages import enter, evidence_of, is_over, leave
from tenora_platform.rollouts.tables import RolloutRow
from tenora_platform.state import AppState

EVERY_S = 2.0
_QUIET_S = 10.0
"""While none runs, and none was changed lately. Less than TOLD_AGAIN: no change is missed."""
_SWEPT_EVERY_S = 120.0  # what shadows answered
TOLD_AGAIN = timedelta(seconds=15)
"""So long after a change the caches are told of it again: who made it may have died before."""
ACTOR = "rollout"
_log = structlog.get_logger(__name__)


class RolloutKeeper:
    """Of a worker; of several, one looks at a time."""

    def __init__(self, state: AppState, wake: Wake | None = None) -> None:
        """`wake`: a rollout or an alias was changed."""
        self._state = state
        self._wake = wake or Wake()

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        swept_s = float("-inf")
        while True:
            is_busy = await self.run_once()
            if time.monotonic() - swept_s >= _SWEPT_EVERY_S:
                swept_s = time.monotonic()
                async with self._state.db.admin_session() as session:
                    await sweep(session)
            if is_busy:
                await asyncio.sleep(EVERY_S)
            else:
                await self._wake.wait(_QUIET_S, EVERY_S)

    async def run_once(self, now: datetime | None = None) -> bool:
        """Look at all that run; whether there is any, or was a change lately. One that cannot be
        looked at keeps none of the others waiting."""
        now = now or datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            if not await try_lock(session, "rollouts"):
                return True
            changed = await repository.lately_changed(session, now - TOLD_AGAIN)
            for tenant_id in changed:
                await self._state.resolver.invalidate(tenant_id)
            running = await repository.all_running(session)
            for row in running:
                try:
                    await self._look(row, now)
                except Exception as error:
                    log_failure(_log, "rollout could not be checked", error, rollout=row.id)
                    if is_own_fault(error) and row.held_since is None:
                        self._state.metrics.jobs_parked.labels("rollout").inc()
                        await self._hold(row, now, "the server failed while it checked it")
            return bool(changed or running)

    async def _look(self, row: RolloutRow, now: datetime) -> None:
        of = OfAlias(row.tenant_id, row.adapter_id, row.alias)
        try:
            evidence = await evidence_of(self._state.outcomes, row, now.timestamp())
            answered = await self._state.outcomes.answered(of, row.version)
        except RedisError as error:
            await self._hold(row, now, f"Redis does not answer: {brief(error)}")
            return
        async with self._state.db.admin_session() as session:
            adapter = await repository.adapter_of(session, row.adapter_id)
            current = await repository.running_rollout(session, row.adapter_id, row.alias)
            if current is None or current.id != row.id:
                return  # ended meanwhile
            if adapter is None:
                end_rollout(current, "cancelled", "the adapter was deleted")
                return
            moved = await self._move(session, adapter, current, now, evidence, answered)
        if moved:
            await self._state.resolver.invalidate(row.tenant_id)

    async def _move(
        self,
        session: AsyncSession,
        adapter: AdapterRow,
        row: RolloutRow,
        now: datetime,
        evidence: Evidence,
        answered: int,
    ) -> bool:
        """Whether the alias has other targets now."""
        _resume(row, now, answered)
        serving = await serving_versions(session, adapter)
        writer = AliasWriter(session, self._state.audit, adapter, row.alias)
        guard = Guard.model_validate(row.guard)
        if guard.score_drop is not None:
            old = [target["version"] for target in row.before]
            scores = await compared(session, row.tenant_id, adapter.name, row.version, old)
            evidence = replace(evidence, scores=scores)
        wrong = breach(guard, evidence)
        if row.version not in serving:
            wrong = f"version {row.version} is no longer active"
        if wrong is not None:
            if not serving & {target["version"] for target in row.before}:
                _note_held(row, now, f"{wrong}; and no earlier version is active any more")
                return False
            await self._roll_back(writer, row, wrong, evidence)
            return True
        if not is_over(row, now, answered):
            return False
        if row.stage + 1 == len(row.stages):
            await self._complete(writer, row, evidence)
            return False
        change = Change("rollout.advance", ACTOR, None, row.id)
        await enter(writer, row, row.stage + 1, change, now, answered)
        self._count("advanced", row)
        return True

    async def _roll_back(
        self, writer: AliasWriter, row: RolloutRow, reason: str, evidence: Evidence
    ) -> None:
        numbers = evidence.numbers().model_dump()
        await leave(writer, row, Change("rollout.roll_back", ACTOR, reason[:500], row.id))
        end_rollout(row, "rolled_back", reason[:500])
        row.numbers = numbers
        data = {
            "id": row.id,
            "adapter": writer.adapter.name,
            "alias": row.alias,
            "version": row.version,
            "stage": row.stage,
            "percent": row.stages[row.stage]["percent"],
            "targets": row.before,
            "reason": reason,
            "numbers": numbers,
            "guard": row.guard,
        }
        await events.add(
            writer.session,
            tenant_id=row.tenant_id,
            type="rollout.rolled_back",
            once=row.id,
            data=data,
        )
        self._count("rolled_back", row)

    async def _complete(self, writer: AliasWriter, row: RolloutRow, evidence: Evidence) -> None:
        end_rollout(row, "completed", None)
        row.numbers = evidence.numbers().model_dump()
        await self._state.audit.append(
            writer.session,
            actor=ACTOR,
            action="rollout.complete",
            target=row.adapter_id,
            tenant_id=row.tenant_id,
            details={"name": f"{writer.adapter.name}@{row.alias}", "rollout": row.id},
        )
        self._count("completed", row)

    async def _hold(self, row: RolloutRow, now: datetime, reason: str) -> None:
        """Neither on nor back. Its stage's time stands still."""
        async with self._state.db.admin_session() as session:
            current = await repository.running_rollout(session, row.adapter_id, row.alias)
            if current is not None and current.id == row.id:
                _note_held(current, now, reason)

    def _count(self, what: str, row: RolloutRow) -> None:
        self._state.metrics.rollouts.labels(what).inc()
        _log.info("roll-out moved", what=what, rollout=row.id, stage=row.stage)


def _note_held(row: RolloutRow, now: datetime, reason: str) -> None:
    if row.held_since is None:
        row.held_since = now
        _log.warning("rollout paused", rollout=row.id, reason=reason)
    row.held_reason = brief(reason)


def _resume(row: RolloutRow, now: datetime, answered: int) -> None:
    """What has been held goes on; where Redis was emptied, or had not been there, the stage's
    requests count from here."""
    if row.held_since is not None:
        row.stage_began_at += now - row.held_since
        row.held_since = row.held_reason = None
    if row.requests_before is None or row.requests_before > answered:
        row.requests_before = answered
