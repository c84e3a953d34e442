"""Pages of a tenant's adapters: searched and sorted by the database. Queries only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import in_slices
from tenora_platform.errors import BadRequestError
from tenora_platform.registry.ranks import Values
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow

SortKey = Literal["created", "name", "requests", "cost"]
_DIGEST = "sha256:"
_DIGEST_CHARACTERS_MIN = 6


@dataclass(frozen=True)
class AdapterOrder:
    """`requests` of the last 24 hours; `cost` of this month, whatever the currency."""

    by: SortKey
    descending: bool


async def adapters_page(
    session: AsyncSession,
    tenant_id: str,
    *,
    q: str | None,
    order: AdapterOrder,
    values: Values | None,
    after: str | None,
    limit: int,
) -> Sequence[AdapterRow]:
    """`limit` + 1 rows at most, so that the caller sees whether there are more. By `values` where
    the order is by them. Raises BadRequestError where `after` is not (or no longer) among these."""
    if values is not None:
        return await _by_values(session, values, tenant_id, q, order, after, limit)
    query = select(AdapterRow).where(*_wanted(tenant_id, q))
    name, number = AdapterRow.name.expression, AdapterRow.id.expression
    keys = (number,) if order.by == "created" else (name, number)
    if after is not None and order.by == "created":
        query = query.where(number < after if order.descending else number > after)
    elif after is not None:
        there = select(name).where(AdapterRow.id == after).scalar_subquery()
        query = query.where(name < there if order.descending else name > there)
    query = query.order_by(*(each.desc() if order.descending else each.asc() for each in keys))
    return (await session.scalars(query.limit(limit + 1))).all()


async def _by_values(
    session: AsyncSession,
    values: Values,
    tenant_id: str,
    q: str | None,
    order: AdapterOrder,
    after: str | None,
    limit: int,
) -> Sequence[AdapterRow]:
    """Sorted here: most of what is sorted has no sum, and a join of the two takes PostgreSQL, which
    cannot know how many there are, seconds for thousands of adapters."""
    query = select(AdapterRow.id).where(*_wanted(tenant_id, q))
    ids = [each async for (each,) in in_slices(session, query)]

    def place(adapter_id: str) -> tuple[int | Decimal, str]:
        return values.get(adapter_id, 0), adapter_id

    ranked = await asyncio.to_thread(sorted, ids, key=place, reverse=order.descending)
    begin = 0
    if after is not None:
        if after not in ranked:
            raise BadRequestError(
                "after names an item that is no longer in this list. Start again without after.",
                param="after",
            )
        begin = ranked.index(after) + 1
    page = ranked[begin : begin + limit + 1]
    found = await session.scalars(select(AdapterRow).where(AdapterRow.id.in_(page)))
    rows = {row.id: row for row in found}
    return [rows[each] for each in page if each in rows]


async def count_adapters(session: AsyncSession, tenant_id: str, q: str | None) -> int:
    query = select(func.count()).select_from(AdapterRow).where(*_wanted(tenant_id, q))
    return int(await session.scalar(query) or 0)


def _wanted(tenant_id: str, q: str | None) -> list[ColumnElement[bool]]:
    """`q` is a part of the name, or how the digest of a version begins."""
    conditions = [AdapterRow.tenant_id == tenant_id, AdapterRow.deleted_at.is_(None)]
    if q:
        found = AdapterRow.name.icontains(q, autoescape=True)
        digits = q.lower().removeprefix(_DIGEST)
        if len(digits) >= _DIGEST_CHARACTERS_MIN and not set(digits) - set("0123456789abcdef"):
            version = exists().where(
                AdapterVersionRow.adapter_id == AdapterRow.id,
                AdapterVersionRow.digest.startswith(_DIGEST + digits),
            )
            return [*conditions, or_(found, version)]
        conditions.append(found)
    return conditions
