"""Queries of reconciliations. The operator's session only. No decisions, no commits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.canary.tables import CanaryRoundRow
from tenora_platform.ids import new_id
from tenora_platform.reconciliation.tables import ReconciliationRow
from tenora_platform.reconciliation.task import Scope, Settled

_AT_ONCE = 20_000


async def ask(session: AsyncSession, scope: Scope, asked_by: str) -> ReconciliationRow:
    """A run that waits; the same that waits already is not asked for twice."""
    same = (
        ReconciliationRow.state == "waiting",
        ReconciliationRow.mode == scope.mode,
        ReconciliationRow.only_tenant.is_not_distinct_from(scope.tenant_id),
        ReconciliationRow.first_day.is_not_distinct_from(scope.first),
        ReconciliationRow.last_day.is_not_distinct_from(scope.last),
    )
    waiting = await session.scalar(select(ReconciliationRow).where(*same).limit(1))
    if waiting is not None:
        return waiting
    row = ReconciliationRow(
        id=new_id("recon"),
        mode=scope.mode,
        state="waiting",
        asked_by=asked_by,
        only_tenant=scope.tenant_id,
        first_day=scope.first,
        last_day=scope.last,
        asked_at=datetime.now(UTC),
    )
    session.add(row)
    await session.flush()
    return row


async def next_waiting(session: AsyncSession) -> ReconciliationRow | None:
    query = (
        select(ReconciliationRow)
        .where(ReconciliationRow.state == "waiting")
        .order_by(ReconciliationRow.asked_at)
        .limit(1)
    )
    found: ReconciliationRow | None = await session.scalar(query)
    return found


async def orphans_wait_again(session: AsyncSession) -> None:
    """Runs whose worker died. Only for who holds the lock under which runs are done."""
    running = select(ReconciliationRow).where(ReconciliationRow.state == "running")
    for row in await session.scalars(running):
        row.state, row.started_at = "waiting", None
    await session.flush()


async def last_of(session: AsyncSession, asked_by: str, mode: str) -> datetime | None:
    """When the last run of this kind was asked for."""
    query = select(func.max(ReconciliationRow.asked_at)).where(
        ReconciliationRow.asked_by == asked_by, ReconciliationRow.mode == mode
    )
    found: datetime | None = await session.scalar(query)
    return found


async def last_done(
    session: AsyncSession, *, everything: bool = True, mode: str | None = None
) -> ReconciliationRow | None:
    """The newest result, of a run of that mode; of `everything`: of one that no tenant or day
    bounded."""
    query = select(ReconciliationRow).where(ReconciliationRow.state == "done")
    if mode is not None:
        query = query.where(ReconciliationRow.mode == mode)
    if everything:
        query = query.where(
            ReconciliationRow.only_tenant.is_(None),
            ReconciliationRow.first_day.is_(None),
            ReconciliationRow.last_day.is_(None),
        )
    query = query.order_by(ReconciliationRow.finished_at.desc()).limit(1)
    found: ReconciliationRow | None = await session.scalar(query)
    return found


async def last_round(session: AsyncSession) -> CanaryRoundRow | None:
    query = select(CanaryRoundRow).order_by(CanaryRoundRow.at.desc()).limit(1)
    found: CanaryRoundRow | None = await session.scalar(query)
    return found


async def list_runs(
    session: AsyncSession, *, after: str | None, limit: int
) -> list[ReconciliationRow]:
    """Newest first; one more than `limit`."""
    query = select(ReconciliationRow).order_by(ReconciliationRow.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(ReconciliationRow.id < after)
    return list(await session.scalars(query))


async def forget(session: AsyncSession, older_than: timedelta) -> None:
    before = datetime.now(UTC) - older_than
    await session.execute(delete(ReconciliationRow).where(ReconciliationRow.asked_at < before))


async def keep_settled(session: AsyncSession, settled: Settled) -> None:
    """Its marks go, and days that are wrong have one: the next run looks at them again."""
    for at in range(0, len(settled.marks), _AT_ONCE):
        numbers = settled.marks[at : at + _AT_ONCE]
        await session.execute(_CLEAR, {"numbers": numbers})
    if settled.wrong:
        tenants, days = zip(*settled.wrong, strict=True)
        await session.execute(_MARK, {"tenants": list(tenants), "days": list(days)})


_CLEAR = text("DELETE FROM moved_days WHERE no = ANY(CAST(:numbers AS bigint[]))")
_MARK = text(
    "INSERT INTO moved_days (tenant, day) SELECT w.tenant, w.day"
    " FROM unnest(CAST(:tenants AS text[]), CAST(:days AS date[])) AS w (tenant, day)"
    " WHERE NOT EXISTS (SELECT FROM moved_days m WHERE m.tenant = w.tenant AND m.day = w.day)"
)
