"""Queries of events, and what of an event may still be told once its tenant has been erased. No
commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, literal_column, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.events.tables import EventRow
from tenora_platform.ids import new_id

_IDS = frozenset({"id", "kind", "number", "tenant_id", "period", "of_invoice"})
_AMOUNTS = frozenset({"currency", "subtotal", "tax", "total", "due_at"})

OF_ERASED: Mapping[str, frozenset[str]] = dict.fromkeys(
    ("invoice.final", "invoice.void", "invoice.credited"), _IDS | _AMOUNTS
)
"""Of a tenant that has been erased nothing else happens but what its books still need, which the
operator is told: these types, and of their data these fields. What else is in them, such as the
reason that somebody wrote, may be about a person."""

_IS_ERASED = text("SELECT erase_after <= clock_timestamp() FROM tenants WHERE id = :tenant")


def is_erased() -> ColumnElement[bool]:
    """Whether the tenant of a row of events has been erased, or is about to be."""
    return literal_column(
        "EXISTS (SELECT 1 FROM tenants "
        "WHERE tenants.id = events.tenant_id AND tenants.erase_after <= clock_timestamp())"
    )


def told_of_erased(type: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is left of an event's data; None where nothing is told at all."""
    fields = OF_ERASED.get(type)
    return None if fields is None else {name: data[name] for name in data if name in fields}


async def add(
    session: AsyncSession, *, tenant_id: str, type: str, once: str, data: Mapping[str, object]
) -> bool:
    """Keep an event unless there is one of this type for `once`; whether it is new. Of a tenant
    that has been erased it keeps what `told_of_erased` leaves."""
    if await session.scalar(_IS_ERASED, {"tenant": tenant_id}):
        left = told_of_erased(type, data)
        if left is None:
            return False
        data = left
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
