"""Works on the jobs of one kind, one at a time, step by step. A step is repeated where a worker
died in it, or a server was away; one that fails for any other reason is repeated a few times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from tenora_platform.askers import operators_role
from tenora_platform.db import plain_reason
from tenora_platform.errors import ApiError, ForbiddenError, UnauthorizedError, UnavailableError
from tenora_platform.ids import new_id
from tenora_platform.jobs import repository
from tenora_platform.jobs.tables import JobRow
from tenora_platform.jobs.work import Asked, Kind, Step
from tenora_platform.live.wakes import Wake
from tenora_platform.outages import is_awaited, log_failure, outage_of
from tenora_platform.state import AppState

ATTEMPTS_MAX = 5
"""In a row, of one step."""
RETRY_S = 5.0  # doubled by each attempt
BEAT_S = 10.0
KEPT = timedelta(days=90)
_LOOK_EVERY_S = 10.0
_DEAF_EVERY_S = 1.0
"""Without word of what is asked for."""
_TELL_EVERY_S = 30.0
_FORGET_EVERY_S = 3600.0
_NEVER_S = float("-inf")
_STATEMENT_TIMEOUT = "57014"
_log = structlog.get_logger(__name__)


class JobWorker:
    """One of each kind runs in each worker, so that kinds do not wait for one another; each job is
    worked on by one of them."""

    def __init__(self, state: AppState, kind: Kind, wake: Wake | None = None) -> None:
        """`wake`: what was asked for."""
        self._wake = wake or Wake()
        self._state = state
        self._db = state.db
        self._kind = kind
        self._name = new_id("worker")
        self._told_s = self._forgot_s = _NEVER_S

    async def run(self) -> None:
        """Works for ever; cancel it to stop. Raises what a server that is away raises: begun again,
        it goes on with the job that it had."""
        while True:
            while await self.run_once():
                self._told_s = _NEVER_S
            await self._tell()
            await self._forget()
            await self._wake.wait(_LOOK_EVERY_S, _DEAF_EVERY_S)

    async def run_once(self) -> bool:
        """Work on the oldest job that nobody works on; returns whether there was one."""
        async with self._db.admin_session() as session:
            row = await repository.take(session, self._name, self._kind.name)
        if row is None:
            return False
        beating = asyncio.create_task(self._beat(row.id))
        try:
            if row.attempts >= ATTEMPTS_MAX:
                await self._give_up(row, row.attempts, "the worker ended in the middle of a step")
            else:
                await self._work_on(row)
        except Exception as error:
            await self._failed(row, error)
        finally:
            beating.cancel()
        return True

    async def _beat(self, job_id: str) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._note(job_id, {})
            except (SQLAlchemyError, OSError) as error:
                _log.warning("job could not be kept", job=job_id, reason=plain_reason(error))

    async def _work_on(self, row: JobRow) -> None:
        """Step by step; `row` is as it was last noted."""
        while True:
            await self._require_right(row)
            step = await self._kind.work(
                Asked(row.spec, row.asked_by, row.place, row.done, row.total, row.result)
            )
            values = _noted(step)
            if not await self._note(row.id, values):
                _log.warning("job is cancelled, or another worker's", job=row.id)
                return
            if step.place is None:
                _log.info("job done", job=row.id, kind=row.kind, done=step.done)
                return
            for name, value in values.items():
                setattr(row, name, value)

    async def _require_right(self, row: JobRow) -> None:
        """Raises ForbiddenError once who asked could not ask for it any more."""
        admins = self._state.auth.admins
        kind, _, id_ = row.asked_by.partition(":")
        if kind != "person" and row.key_prefix is None and id_ not in admins.configured_ids:
            raise ForbiddenError(
                f"{row.asked_by}, who started this, is no configured admin key any more."
            )
        try:
            async with self._db.admin_session() as session:
                connection = await session.connection()
                role = await connection.run_sync(operators_role, row.asked_by, row.key_prefix)
        except (UnauthorizedError, ForbiddenError) as error:
            raise ForbiddenError(f"{row.asked_by}, who started this: {error.message}") from error
        if role != "owner" and role not in self._kind.roles:
            raise ForbiddenError(
                f"{row.asked_by}, who started this, has the role {role!r} by now, which may not."
            )

    async def _failed(self, row: JobRow, error: Exception) -> None:
        """A refusal ends the job. What is awaited is told and raised. Else the step counts as an
        attempt, keeps no other job waiting, and is given up in the end."""
        if isinstance(error, ApiError) and not isinstance(error, UnavailableError):
            _log.warning("job refused", job=row.id, reason=error.message)
            await self._note(row.id, {**_ended("failed", error.message), "attempts": 0})
            return
        reason = plain_reason(error)
        if is_awaited(error) and not _is_of_the_step(error):
            outage = outage_of(error)
            said = outage.message.removesuffix(" Please try again.") if outage else reason
            await self._note(row.id, {"waiting_for": f"a server: {said}"})
            raise error
        attempts = row.attempts + 1
        log_failure(_log, "job failed", error, job=row.id, attempt=attempts)
        if attempts < ATTEMPTS_MAX:
            later = datetime.now(UTC) + timedelta(seconds=RETRY_S * 2**attempts)
            said = f"another attempt; {attempts} of {ATTEMPTS_MAX} failed: {reason}"
            again = {"state": "waiting", "not_before": later, "waiting_for": said, "worker": None}
            await self._note(row.id, {**again, "attempts": attempts})
            return
        await self._give_up(row, attempts, reason)

    async def _give_up(self, row: JobRow, attempts: int, reason: str) -> None:
        self._state.metrics.jobs_parked.labels(row.kind).inc()
        _log.error("job given up", job=row.id, kind=row.kind, attempts=attempts)
        ended = _ended("failed", f"It failed {attempts} times: {reason}")
        await self._note(row.id, {**ended, "attempts": attempts})

    async def _note(self, job_id: str, values: dict[str, Any]) -> bool:
        async with self._db.admin_session() as session:
            return await repository.note(session, job_id, self._name, values)

    async def _tell(self) -> None:
        """For `/readyz`, what is tried again or was given up, whichever worker did it."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s < _TELL_EVERY_S:
            return
        self._told_s, name = now_s, f"jobs of {self._kind.name}"
        async with self._db.admin_session() as session:
            row = await repository.troubled(session, self._kind.name)
        self._state.outages.pop(name, None)
        if row is not None:
            does = "was given up" if row.finished_at else "is tried again"
            self._state.outages[name] = f"{row.id} {does} after {row.attempts} attempts"

    async def _forget(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._forgot_s >= _FORGET_EVERY_S:
            self._forgot_s = now_s
            async with self._db.admin_session() as session:
                await repository.forget(session, KEPT)


def _is_of_the_step(error: Exception) -> bool:
    """Whether the database answers, and will not otherwise the next time: a statement that takes
    too long, or is wrong."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None)
    return state == _STATEMENT_TIMEOUT or isinstance(error, ProgrammingError)


def _noted(step: Step) -> dict[str, Any]:
    values: Mapping[str, Any] = {
        "place": None if step.place is None else dict(step.place),
        "done": step.done,
        "total": step.total,
        "result": dict(step.result),
        "attempts": 0,
        "waiting_for": None,
    }
    return {**values, **(_ended("done") if step.place is None else {})}


def _ended(state: str, error: str | None = None) -> dict[str, Any]:
    ended = {"state": state, "finished_at": datetime.now(UTC)}
    return {**ended, "error": error, "waiting_for": None}
