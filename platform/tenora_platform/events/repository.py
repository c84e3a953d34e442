"""Queries of events. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.events.tables import EventRow
from tenora_platform.ids import new_id


async def add(
    session: AsyncSession, *, tenant_id: str, type: str, once: str, data: Mapping[str, object]
) -> bool:
    """Keep an event unless there is one of this type for `once`; whether it is new."""
    statement = (
        insert(EventRow)
        .values(id=new_id("evt"), tenant_id=tenant_id, type=type, once=once, data=dict(data))
        .on_conflict_do_nothing()
        .returning(EventRow.id)
    )
    return await session.scalar(statement) is not None


async def list_events(
    session: AsyncSession, tenant_id: str, *, type: str | None, after: str | None, limit: int
) -> list[EventRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(EventRow)
        .where(EventRow.tenant_id == tenant_id)
        .order_by(EventRow.id.desc())
        .limit(limit + 1)
    )
    if type is not None:
        query = query.where(EventRow.type == type)
    if after is not None:
        query = query.where(EventRow.id < after)
    return list(await session.scalars(query))
