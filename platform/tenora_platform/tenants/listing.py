"""The operator's list of tenants: filtered, sorted and paged by the database, with what each of
them spent in a month. What is spent in different currencies is never added."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import (
    ARRAY,
    ScalarSelect,
    Select,
    SQLColumnExpression,
    Text,
    any_,
    func,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.db import in_slices
from tenora_platform.tenants.ranks import AMOUNT, Days, Ranks
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.tables import UsageDayRow

Status = Literal["active", "suspended"]
Sort = Literal["created", "-created", "name", "-name", "spend", "-spend", "requests", "-requests"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which tenants, and in what order. `currency`: the one that `spend` compares."""

    q: str | None = None
    plan: str | None = None
    status: Status | None = None
    tenant_id: str | None = None
    sort: Sort = "-created"
    currency: str = "USD"


@dataclass(slots=True)
class Used:
    """Of one tenant: `amounts` by currency and day, `unrated` events of the span."""

    amounts: defaultdict[str, dict[date, Decimal]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    unrated: int = 0


@dataclass(slots=True)
class Spent:
    """Of one tenant, `amounts` by currency."""

    amounts: dict[str, Decimal] = field(default_factory=dict)
    requests_today: int = 0
    unrated: int = 0


_NOTHING = Decimal(0)


async def count(session: AsyncSession, chosen: Chosen) -> int:
    query = _filtered(select(func.count()).select_from(TenantRow), chosen)
    return int(await session.scalar(query) or 0)


async def page(
    session: AsyncSession,
    ranks: Ranks,
    chosen: Chosen,
    days: Days,
    *,
    after: str | None,
    limit: int,
) -> list[TenantRow]:
    """One more than `limit`."""
    by, descending = paging.split(chosen.sort)
    if by in ("spend", "requests"):
        compared = ranks.spent(days, chosen.currency) if by == "spend" else ranks.requests(days)
        return await _by_value(session, chosen, await compared, after=after, limit=limit)
    key: SQLColumnExpression[Any] = TenantRow.id.expression
    # Ids are made in time's order, also that of a row that is gone.
    key_of_after: ScalarSelect[Any] = select(literal(after, Text)).scalar_subquery()
    if by == "name":
        key = func.lower(TenantRow.name)
        key_of_after = select(key).where(TenantRow.id == after).scalar_subquery()
    order = paging.Order(key, TenantRow.id.expression, descending, key_of_after)
    query = _filtered(select(TenantRow), chosen)
    return list(await session.scalars(paging.page(query, order, after=after, limit=limit)))


async def _by_value(
    session: AsyncSession,
    chosen: Chosen,
    values: Mapping[str, Decimal],
    *,
    after: str | None,
    limit: int,
) -> list[TenantRow]:
    """Those that have none come as 0; of equals by id."""
    _, descending = paging.split(chosen.sort)
    query = _filtered(select(TenantRow.id), chosen)
    ids = [each async for (each,) in in_slices(session, query)]

    def place(tenant_id: str) -> tuple[Decimal, str]:
        return values.get(tenant_id, _NOTHING), tenant_id

    places = await asyncio.to_thread(lambda: sorted(map(place, ids), reverse=descending))
    if after is not None:
        last = place(after)
        places = [each for each in places if (each < last if descending else each > last)]
    wanted = [tenant_id for _, tenant_id in places[: limit + 1]]
    shown = select(TenantRow).where(TenantRow.id == any_(literal(wanted, ARRAY(Text))))
    rows = {row.id: row for row in await session.scalars(shown)}
    return [rows[each] for each in wanted if each in rows]


async def spent(
    session: AsyncSession, tenant_ids: Sequence[str], days: Days
) -> Mapping[str, Spent]:
    """What these tenants spent of the days as a whole."""
    query = (
        select(
            UsageDayRow.tenant_id,
            PriceVersionRow.currency,
            func.sum(AMOUNT),
            func.sum(UsageDayRow.requests).filter(UsageDayRow.day == days.today),
            func.sum(UsageDayRow.unrated),
        )
        .outerjoin(PriceVersionRow, PriceVersionRow.no == UsageDayRow.price_version_no)
        .where(
            UsageDayRow.tenant_id == any_(literal(list(tenant_ids), ARRAY(Text))),
            UsageDayRow.day >= days.first,
            UsageDayRow.day < days.end,
        )
        .group_by(UsageDayRow.tenant_id, PriceVersionRow.currency)
        .order_by(PriceVersionRow.currency)
    )
    found = {each: Spent() for each in tenant_ids}
    for tenant_id, currency, amount, requests, unrated in await session.execute(query):
        of = found[tenant_id]
        of.requests_today += int(requests or 0)
        of.unrated += int(unrated)
        if currency is not None and amount:
            of.amounts[currency] = amount
    return found


async def used(
    session: AsyncSession, tenant_ids: Sequence[str], days: Days, *, since: date | None = None
) -> Mapping[str, Used]:
    """What these tenants used, day by day. `since`: amounts are from this day on, which may be
    before the first."""
    first = days.first if since is None else since
    query = (
        select(
            UsageDayRow.tenant_id,
            UsageDayRow.day,
            PriceVersionRow.currency,
            func.sum(AMOUNT),
            func.sum(UsageDayRow.unrated),
        )
        .outerjoin(PriceVersionRow, PriceVersionRow.no == UsageDayRow.price_version_no)
        .where(
            UsageDayRow.tenant_id == any_(literal(list(tenant_ids), ARRAY(Text))),
            UsageDayRow.day >= first,
            UsageDayRow.day < days.end,
        )
        .group_by(UsageDayRow.tenant_id, UsageDayRow.day, PriceVersionRow.currency)
    )
    found: dict[str, Used] = {each: Used() for each in tenant_ids}
    for tenant_id, day, currency, amount, unrated in await session.execute(query):
        of = found[tenant_id]
        if day >= days.first:
            of.unrated += int(unrated)
        if currency is not None:
            of.amounts[currency][day] = amount
    return found


async def first_use(session: AsyncSession, tenant_ids: Sequence[str]) -> dict[str, date]:
    """The first day of each tenant's that has any usage."""
    query = (
        select(UsageDayRow.tenant_id, func.min(UsageDayRow.day))
        .where(UsageDayRow.tenant_id == any_(literal(list(tenant_ids), ARRAY(Text))))
        .group_by(UsageDayRow.tenant_id)
    )
    return dict((await session.execute(query)).all())


async def named(session: AsyncSession, name: str, *, limit: int = 10) -> list[str]:
    """The ids of tenants that have this name, in any case; the oldest first."""
    query = (
        select(TenantRow.id)
        .where(func.lower(TenantRow.name) == func.lower(name))
        .order_by(TenantRow.id)
        .limit(limit)
    )
    return list(await session.scalars(query))


async def names_of(session: AsyncSession, tenant_ids: Sequence[str]) -> dict[str, str]:
    query = select(TenantRow.id, TenantRow.name).where(
        TenantRow.id == any_(literal(list(tenant_ids), ARRAY(Text)))
    )
    return dict((await session.execute(query)).all())


def _filtered(query: Select[Any], chosen: Chosen) -> Select[Any]:
    query = query.where(*paging.having(chosen.q, TenantRow.name, TenantRow.id))
    for column, value in (
        (TenantRow.plan, chosen.plan),
        (TenantRow.status, chosen.status),
        (TenantRow.id, chosen.tenant_id),
    ):
        if value is not None:
            query = query.where(column == value)
    return query
