"""A tenant's keys as a list: searched, sorted, page by page. Which rows it may touch is the
session's matter."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from sqlalchemy import ColumnElement, false, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.tenants.tables import ApiKeyRow

Sort = Literal["created", "-created", "name", "-name", "last_used", "-last_used"]
KeyState = Annotated[
    Literal["active", "ended"] | None,
    Query(description="Only valid keys, or only keys that were revoked or have expired"),
]
KeySort = Annotated[Sort, Query(description="Sort order; '-' in front means descending")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which keys: those whose name, prefix or id has `asked` in it; None: all."""

    asked: str | None = None
    state: Literal["active", "ended"] | None = None
    sort: Sort = "-created"
    after: str | None = None
    limit: int = 20


_ORDERS: dict[str, ColumnElement[Any]] = {
    "created": ApiKeyRow.id.expression,
    "name": func.lower(ApiKeyRow.name),
    # Never used is longest ago.
    "last_used": func.coalesce(ApiKeyRow.last_used_at, literal(datetime.min.replace(tzinfo=UTC))),
}


async def list_keys(session: AsyncSession, tenant_id: str, wanted: Wanted) -> list[ApiKeyRow]:
    """One more than `limit`."""
    by, descending = paging.split(wanted.sort)
    key = _ORDERS[by]
    query = select(ApiKeyRow).where(
        ApiKeyRow.tenant_id == tenant_id,
        *paging.having(wanted.asked, ApiKeyRow.name, ApiKeyRow.prefix, ApiKeyRow.id),
    )
    if wanted.state is not None:
        over = ApiKeyRow.revoked_at.is_not(None) | func.coalesce(
            ApiKeyRow.expires_at <= func.now(), false()
        )
        query = query.where(over if wanted.state == "ended" else ~over)
    of_after = select(key).where(ApiKeyRow.tenant_id == tenant_id, ApiKeyRow.id == wanted.after)
    order = paging.Order(key, ApiKeyRow.id.expression, descending, of_after.scalar_subquery())
    rows = paging.page(query, order, after=wanted.after, limit=wanted.limit)
    return list(await session.scalars(rows))
