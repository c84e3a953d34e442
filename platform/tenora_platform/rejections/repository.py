"""Queries of rejected calls. Which rows they may touch is the session's matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.rejections.tables import RejectedCallRow
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow

_Row = RejectedCallRow


@dataclass(frozen=True)
class Filters:
    """What was asked for; None: whatever. `tenant_id` "": calls of which nobody knows whose they
    are."""

    tenant_id: str | None = None
    start: datetime | None = None
    end: datetime | None = None  # exclusive
    status: int | None = None  # 400 to 599; 4 and 5: all of 4xx, of 5xx
    code: str | None = None
    api_key: str | None = None
    q: str | None = None

    def of(self, tenant_id: str | None) -> Filters:
        return replace(self, tenant_id=tenant_id)


@dataclass(frozen=True)
class Found:
    """A row with the names that go with its ids."""

    row: RejectedCallRow
    key_name: str | None
    tenant_name: str | None


async def list_calls(
    session: AsyncSession, filters: Filters, after: str | None, limit: int
) -> list[Found]:
    """Newest first; one more than `limit`."""
    query = (
        select(_Row, ApiKeyRow.name, TenantRow.name)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == _Row.api_key_id)
        .outerjoin(TenantRow, TenantRow.id == _Row.tenant_id)
        .order_by(_Row.id.desc())
        .limit(limit + 1)
    )
    for column, value in (
        (_Row.tenant_id, filters.tenant_id),
        (_Row.code, filters.code),
        (_Row.api_key_id, filters.api_key),
    ):
        if value is not None:
            query = query.where(column == value)
    if filters.status is not None and filters.status < 10:
        query = query.where(_Row.status // 100 == filters.status)
    elif filters.status is not None:
        query = query.where(_Row.status == filters.status)
    if filters.start is not None:
        query = query.where(_Row.at >= filters.start)
    if filters.end is not None:
        query = query.where(_Row.at < filters.end)
    if after is not None:
        query = query.where(_Row.id < after)
    searched = (_Row.message, _Row.param, _Row.code, _Row.model, _Row.request_id)
    query = query.where(*paging.having(filters.q, *searched))
    return [Found(*each) for each in await session.execute(query)]


async def tenants_since(session: AsyncSession, at: datetime) -> list[str]:
    query = select(_Row.tenant_id).where(_Row.at >= at).distinct()
    return list(await session.scalars(query))


async def oldest_kept(session: AsyncSession, tenant_id: str, most: int) -> str | None:
    """The id from which on a tenant's newest `most` rows are; None while there are not so many."""
    query = (
        select(_Row.id)
        .where(_Row.tenant_id == tenant_id)
        .order_by(_Row.id.desc())
        .offset(most - 1)
        .limit(1)
    )
    found: str | None = await session.scalar(query)
    return found


async def sweep(
    session: AsyncSession,
    at_once: int,
    *,
    before: datetime | None = None,
    of: tuple[str, str] | None = None,
) -> int:
    """Delete some rows of before a time, or (`of` tenant and id) a tenant's before an id; how
    many."""
    old = select(_Row.id).limit(at_once)
    if before is not None:
        old = old.where(_Row.at < before)
    if of is not None:
        old = old.where(_Row.tenant_id == of[0], _Row.id < of[1])
    done = await session.execute(delete(_Row).where(_Row.id.in_(old.scalar_subquery())))
    return int(getattr(done, "rowcount", 0))
