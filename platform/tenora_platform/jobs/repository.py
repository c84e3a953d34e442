"""Queries of jobs. The operator's session only. No commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.ids import new_id
from tenora_platform.jobs.tables import JobRow
from tenora_platform.live.noticing import note as note_change

LOST_AFTER = timedelta(seconds=30)
"""A worker that has not said for so long that it works on a job does not."""


async def ask(session: AsyncSession, kind: str, spec: dict[str, Any], asked_by: str) -> JobRow:
    """A job that waits; the same that waits already is not asked for twice."""
    query = select(JobRow).where(
        JobRow.kind == kind, JobRow.state == "waiting", JobRow.spec == spec
    )
    waiting: JobRow | None = await session.scalar(query.limit(1))
    if waiting is not None:
        return waiting
    row = JobRow(id=new_id("job"), kind=kind, state="waiting", asked_by=asked_by, spec=spec)
    session.add(row)
    note_change(session, ["jobs"])
    await session.flush()
    await session.refresh(row)
    return row


async def take(session: AsyncSession, worker: str, kinds: Sequence[str]) -> JobRow | None:
    """The oldest that nobody works on, from now on the worker's."""
    now = func.clock_timestamp()
    lost = and_(JobRow.state == "running", JobRow.beat_at < now - LOST_AFTER)
    query = (
        select(JobRow)
        .where(
            or_(JobRow.state == "waiting", lost),
            JobRow.finished_at.is_(None),
            JobRow.kind.in_(kinds),
        )
        .order_by(JobRow.asked_at)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=True)
    )
    row: JobRow | None = await session.scalar(query)
    if row is not None:
        row.state, row.worker = "running", worker
        row.started_at = row.started_at or datetime.now(UTC)
        await session.flush()
        await beat(session, row.id, worker)
        await session.refresh(row)
    return row


async def beat(session: AsyncSession, job_id: str, worker: str) -> bool:
    """The worker works on it; False: another does."""
    return await _change(session, job_id, worker, {"beat_at": func.clock_timestamp()})


async def note(session: AsyncSession, job_id: str, worker: str, values: dict[str, Any]) -> bool:
    """How far it is; False, and nothing changed: another works on it."""
    return await _change(session, job_id, worker, {**values, "beat_at": func.clock_timestamp()})


async def _change(session: AsyncSession, job_id: str, worker: str, values: dict[str, Any]) -> bool:
    own = (JobRow.id == job_id, JobRow.worker == worker, JobRow.state == "running")
    result = await session.execute(
        update(JobRow).where(*own).values(**values).execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


async def find(session: AsyncSession, job_id: str, kind: str) -> JobRow | None:
    row = await session.get(JobRow, job_id)
    return row if row is not None and row.kind == kind else None


async def list_jobs(
    session: AsyncSession, kind: str, *, after: str | None, limit: int
) -> list[JobRow]:
    """Newest first; one more than `limit`."""
    conditions: list[ColumnElement[bool]] = [JobRow.kind == kind]
    if after is not None:
        conditions.append(JobRow.id < after)
    query = select(JobRow).where(*conditions).order_by(JobRow.id.desc()).limit(limit + 1)
    return list(await session.scalars(query))


async def forget(session: AsyncSession, older_than: timedelta) -> None:
    """Those that ended so long ago."""
    before = datetime.now(UTC) - older_than
    await session.execute(
        delete(JobRow).where(JobRow.finished_at.is_not(None), JobRow.finished_at < before)
    )
