"""Queries of the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.tables import AuditRow


async def last_of(session: AsyncSession, chain: str) -> AuditRow | None:
    query = select(AuditRow).where(AuditRow.chain == chain).order_by(AuditRow.seq.desc()).limit(1)
    found: AuditRow | None = await session.scalar(query)
    return found


async def walk(session: AsyncSession, batch: int = 500) -> AsyncIterator[AuditRow]:
    """Every entry, chain by chain, in order."""
    query = select(AuditRow).order_by(AuditRow.chain, AuditRow.seq).limit(batch)
    where = query
    while True:
        rows = list(await session.scalars(where))
        for row in rows:
            yield row
        if len(rows) < batch:
            return
        place = tuple_(AuditRow.chain, AuditRow.seq)
        where = query.where(place > (rows[-1].chain, rows[-1].seq))
        session.expunge_all()  # a long log need not fit into memory


async def list_entries(
    session: AsyncSession,
    *,
    tenant_id: str | None,
    action: str | None,
    after: str | None,
    limit: int,
    actor: str | None = None,
    target: str | None = None,
) -> list[AuditRow]:
    """Newest first; ids sort by time, so `after` is a place in the list. One more than `limit`
    is fetched, to know whether there is more."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
    if tenant_id is not None:
        query = query.where(AuditRow.tenant_id == tenant_id)
    if action is not None:
        query = query.where(AuditRow.action == action)
    if actor is not None:
        query = query.where(AuditRow.actor == actor)
    if target is not None:
        query = query.where(AuditRow.target == target)
    if after is not None:
        query = query.where(AuditRow.id < after)
    return list(await session.scalars(query))


async def next_entries(
    session: AsyncSession, chains: str | None, place: tuple[str, int], limit: int
) -> list[AuditRow]:
    """Of one chain, or of all by name: those behind a place, in the order in which they were
    written."""
    query = select(AuditRow).order_by(AuditRow.chain, AuditRow.seq).limit(limit)
    if chains is not None:
        query = query.where(AuditRow.chain == chains)
    return list(await session.scalars(query.where(tuple_(AuditRow.chain, AuditRow.seq) > place)))
