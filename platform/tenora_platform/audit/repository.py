"""Queries of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Select, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.audit.names import called
from tenora_platform.audit.tables import AuditRow
from tenora_platform.ids import first_id
from tenora_platform.tenants.tables import TenantRow


async def last_of(session: AsyncSession, chain: str) -> AuditRow | None:
    query = select(AuditRow).where(AuditRow.chain == chain).order_by(AuditRow.seq.desc()).limit(1)
    found: AuditRow | None = await session.scalar(query)
    return found


async def tenants_without_a_chain(session: AsyncSession) -> list[str]:
    """Every tenant's begins with its creation."""
    chain = select(AuditRow.id).where(AuditRow.chain == TenantRow.id).exists()
    query = select(TenantRow.id).where(~chain).order_by(TenantRow.id)
    return list(await session.scalars(query))


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What of the log is wanted; None: whatever it is. `asked` is a part of an actor, an action, a
    target, of what these or the tenant are called, a request's id or an entry's; `action` ending in
    * begins one (`api_key.*`)."""

    tenant_id: str | None = None
    operator: bool = False  # only the operator's chain
    action: str | None = None
    actor: str | None = None
    target: str | None = None
    asked: str | None = None
    start: datetime | None = None
    end: datetime | None = None  # exclusive
    by_operator: bool = False  # who asks


_CLOCKS = timedelta(minutes=10)
"""How far apart an entry's id and its time may be made, by processes whose clocks differ."""


async def list_entries(
    session: AsyncSession, wanted: Filter, *, oldest_first: bool, after: str | None, limit: int
) -> list[AuditRow]:
    """By time; ids sort by it, so `after` is a place in the list. One more than `limit` is fetched,
    to know whether there is more."""
    query = _filtered(select(AuditRow), wanted)
    if after is not None:
        query = query.where(AuditRow.id > after if oldest_first else AuditRow.id < after)
    order = AuditRow.id.asc() if oldest_first else AuditRow.id.desc()
    return list(await session.scalars(query.order_by(order).limit(limit + 1)))


def _filtered(query: Select[tuple[AuditRow]], wanted: Filter) -> Select[tuple[AuditRow]]:
    for column in (AuditRow.tenant_id, AuditRow.actor, AuditRow.target):
        value = getattr(wanted, column.key)
        if value is not None:
            query = query.where(column == value)
    if wanted.operator:
        query = query.where(AuditRow.tenant_id.is_(None))
    if wanted.action is not None:
        begins = wanted.action.removesuffix("*")
        exact = begins == wanted.action
        is_one = AuditRow.action.startswith(begins, autoescape=True)
        query = query.where(AuditRow.action == wanted.action if exact else is_one)
    # By the id as well, of which there is an index.
    if wanted.start is not None:
        first = first_id("audit", wanted.start - _CLOCKS)
        query = query.where(AuditRow.at >= wanted.start, AuditRow.id >= first)
    if wanted.end is not None:
        last = first_id("audit", wanted.end + _CLOCKS)
        query = query.where(AuditRow.at < wanted.end, AuditRow.id < last)
    columns = (
        AuditRow.actor,
        AuditRow.action,
        AuditRow.target,
        AuditRow.request_id,
        AuditRow.id,
    )
    if wanted.asked is None:
        return query
    has_it = paging.having(wanted.asked, *columns)
    return query.where(or_(*has_it, called(wanted.asked, by_operator=wanted.by_operator)))


async def next_entries(
    session: AsyncSession, chains: str | None, place: tuple[str, int], limit: int
) -> list[AuditRow]:
    """Of one chain, or of all by name: those behind a place, in the order in which they were
    written."""
    query = select(AuditRow).order_by(AuditRow.chain, AuditRow.seq).limit(limit)
    if chains is not None:
        query = query.where(AuditRow.chain == chains)
    return list(await session.scalars(query.where(tuple_(AuditRow.chain, AuditRow.seq) > place)))
