"""Queries of jobs. The operator's session only. No commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value

from tenora_platform.errors import ConflictError
from tenora_platform.ids import new_id
from tenora_platform.jobs.tables import JobRow
from tenora_platform.live.noticing import note as note_change

LOST_AFTER = timedelta(seconds=30)
"""A worker that has not said for so long that it works on a job does not."""
A_WORKER = "a worker"
"""What the first job in line waits for."""


async def ask(
    session: AsyncSession,
    kind: str,
    spec: dict[str, Any],
    asked_by: str,
    key_prefix: str | None = None,
) -> JobRow:
    """A job that waits; the same that who asks has waiting already is not asked for twice."""
    query = select(JobRow).where(
        JobRow.kind == kind,
        JobRow.state == "waiting",
        JobRow.started_at.is_(None),
        JobRow.spec == spec,
        JobRow.asked_by == asked_by,
        JobRow.key_prefix.is_not_distinct_from(key_prefix),
    )
    row: JobRow | None = await session.scalar(query.limit(1))
    if row is None:
        row = JobRow(
            id=new_id("job"),
            kind=kind,
            state="waiting",
            asked_by=asked_by,
            key_prefix=key_prefix,
            spec=spec,
        )
        session.add(row)
        note_change(session, ["jobs"])
        await session.flush()
        await session.refresh(row)
    await tell(session, [row])
    return row


async def take(session: AsyncSession, worker: str, kind: str) -> JobRow | None:
    """The oldest that nobody works on, from now on the worker's: one that it has begun first. One
    in which another worker died has had an attempt by that."""
    now = func.clock_timestamp()
    begun = JobRow.worker == worker
    lost = JobRow.beat_at < now - LOST_AFTER
    due = or_(JobRow.not_before.is_(None), JobRow.not_before <= now)
    is_free = or_(
        and_(JobRow.state == "waiting", due), and_(JobRow.state == "running", or_(begun, lost))
    )
    query = (
        select(JobRow)
        .where(is_free, JobRow.finished_at.is_(None), JobRow.kind == kind)
        .order_by(func.coalesce(begun, False).desc(), JobRow.asked_at)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=True)
    )
    row: JobRow | None = await session.scalar(query)
    if row is not None:
        row.attempts += row.state == "running" and row.worker != worker
        row.state, row.worker = "running", worker
        row.not_before = row.waiting_for = None
        row.started_at = row.started_at or datetime.now(UTC)
        await session.flush()
        await note(session, row.id, worker, {})
        await session.refresh(row)
    return row


async def note(session: AsyncSession, job_id: str, worker: str, values: dict[str, Any]) -> bool:
    """How far it is, and that the worker works on it; False, and nothing changed: it does not any
    more, for another does, or the job was cancelled."""
    own = (JobRow.id == job_id, JobRow.worker == worker, JobRow.state == "running")
    result = await session.execute(
        update(JobRow)
        .where(*own)
        .values(**{**values, "beat_at": func.clock_timestamp()})
        .execution_options(synchronize_session=False)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


async def cancel(session: AsyncSession, job_id: str, actor: str) -> bool:
    """Let it end with the step that is under way, if any. False, and nothing changed: it was
    cancelled before. Raises ConflictError where it has ended otherwise."""
    row = await session.get_one(
        JobRow, job_id, with_for_update={"key_share": True}, populate_existing=True
    )
    if row.state == "cancelled":
        return False
    if row.finished_at is not None:
        raise ConflictError(f"This has ended already: it is {row.state}.", code="job_ended")
    row.state, row.finished_at = "cancelled", datetime.now(UTC)
    row.waiting_for, row.error = None, f"Cancelled by {actor}."
    await session.flush()
    return True


async def end_open(session: AsyncSession, reason: str) -> None:
    """Those that have not ended have failed, and no worker goes on with them."""
    values = {
        "state": "failed",
        "finished_at": func.now(),
        "error": reason,
        "waiting_for": None,
        "attempts": 0,
    }
    await session.execute(update(JobRow).where(JobRow.finished_at.is_(None)).values(**values))


async def find(session: AsyncSession, job_id: str, kind: str) -> JobRow | None:
    row = await session.get(JobRow, job_id)
    if row is None or row.kind != kind:
        return None
    await tell(session, [row])
    return row


async def list_jobs(
    session: AsyncSession, kind: str, *, after: str | None, limit: int
) -> list[JobRow]:
    """Newest first; one more than `limit`."""
    conditions: list[ColumnElement[bool]] = [JobRow.kind == kind]
    if after is not None:
        conditions.append(JobRow.id < after)
    query = select(JobRow).where(*conditions).order_by(JobRow.id.desc()).limit(limit + 1)
    rows = list(await session.scalars(query))
    await tell(session, rows)
    return rows


async def tell(session: AsyncSession, rows: Sequence[JobRow]) -> None:
    """Let `waiting_for` of those that wait say what they wait for, though no row does: the jobs
    before them, or a worker where nobody works on one of these."""
    silent = [row for row in rows if row.state == "waiting" and row.waiting_for is None]
    for row in silent:
        is_worked_on = and_(
            JobRow.state == "running", JobRow.beat_at >= func.clock_timestamp() - LOST_AFTER
        )
        before = and_(
            JobRow.kind == row.kind, JobRow.finished_at.is_(None), JobRow.asked_at < row.asked_at
        )
        query = select(func.count(), func.bool_or(is_worked_on)).where(before)
        count, is_moving = (await session.execute(query)).one()
        jobs = "1 job" if count == 1 else f"{count} jobs"
        said = f"{jobs} before it" if is_moving else A_WORKER
        set_committed_value(row, "waiting_for", said)


async def troubled(session: AsyncSession, kind: str) -> JobRow | None:
    """One that is tried again; else the newest that has ended, if it failed in its attempts."""
    of_kind = select(JobRow).where(JobRow.kind == kind).limit(1)
    again = of_kind.where(JobRow.finished_at.is_(None), JobRow.attempts > 0)
    row: JobRow | None = await session.scalar(again)
    if row is None:
        ended = of_kind.where(JobRow.state.in_(("done", "failed"))).order_by(JobRow.id.desc())
        row = await session.scalar(ended)
    return row if row is not None and row.attempts else None


async def forget(session: AsyncSession, older_than: timedelta) -> None:
    """Those that ended so long ago."""
    before = datetime.now(UTC) - older_than
    await session.execute(
        delete(JobRow).where(JobRow.finished_at.is_not(None), JobRow.finished_at < before)
    )
