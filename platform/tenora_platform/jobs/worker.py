"""Works on jobs, one at a time, step by step. A step is repeated where a worker died in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.db import Database, plain_reason
from tenora_platform.errors import ApiError
from tenora_platform.ids import new_id
from tenora_platform.jobs import repository
from tenora_platform.jobs.tables import JobRow
from tenora_platform.jobs.work import Asked, Step, Work
from tenora_platform.live.wakes import Wake

BEAT_S = 10.0
KEPT = timedelta(days=90)
_LOOK_EVERY_S = 10.0
_DEAF_EVERY_S = 1.0
"""Without word of what is asked for."""
_FORGET_EVERY_S = 3600.0
_log = structlog.get_logger(__name__)


class JobWorker:
    """One runs in each worker; each job is worked on by one of them."""

    def __init__(self, db: Database, works: Mapping[str, Work], wake: Wake | None = None) -> None:
        """`works` by kind; `wake`: what was asked for."""
        self._wake = wake or Wake()
        self._db = db
        self._works = works
        self._name = new_id("worker")
        self._forgot_s = float("-inf")

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                while await self.run_once():
                    pass
                await self._forget()
            except (SQLAlchemyError, OSError) as error:
                _log.warning("jobs wait", reason=plain_reason(error))
            await self._wake.wait(_LOOK_EVERY_S, _DEAF_EVERY_S)

    async def run_once(self) -> bool:
        """Work on the oldest job that nobody works on; returns whether there was one."""
        async with self._db.admin_session() as session:
            row = await repository.take(session, self._name, list(self._works))
        if row is None:
            return False
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(self._beat(row.id))
            try:
                await self._work_on(row)
            finally:
                beating.cancel()
        return True

    async def _beat(self, job_id: str) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                async with self._db.admin_session() as session:
                    await repository.beat(session, job_id, self._name)
            except (SQLAlchemyError, OSError) as error:
                _log.warning("job could not be kept", job=job_id, reason=plain_reason(error))

    async def _work_on(self, row: JobRow) -> None:
        work, place, done, total = self._works[row.kind], row.place, row.done, row.total
        result: Mapping[str, Any] = row.result
        while True:
            try:
                step = await work(Asked(row.spec, row.asked_by, place, done, total, result))
            except ApiError as error:
                await self._note(row.id, {**_ended("failed"), "error": error.message})
                return
            if not await self._note(row.id, _noted(step)):
                _log.warning("another worker has taken over", job=row.id)
                return
            if step.place is None:
                _log.info("job done", job=row.id, kind=row.kind, done=step.done)
                return
            place, done, total = dict(step.place), step.done, step.total
            result = step.result

    async def _note(self, job_id: str, values: dict[str, Any]) -> bool:
        async with self._db.admin_session() as session:
            return await repository.note(session, job_id, self._name, values)

    async def _forget(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._forgot_s >= _FORGET_EVERY_S:
            self._forgot_s = now_s
            async with self._db.admin_session() as session:
                await repository.forget(session, KEPT)


def _noted(step: Step) -> dict[str, Any]:
    values: dict[str, Any] = {
        "place": None if step.place is None else dict(step.place),
        "done": step.done,
        "total": step.total,
        "result": dict(step.result),
    }
    return values | _ended("done") if step.place is None else values


def _ended(state: str) -> dict[str, Any]:
    return {"state": state, "finished_at": datetime.now(UTC)}
