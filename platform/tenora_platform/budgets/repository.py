"""What the database knows of money spent: sums by account, the events of lately, and grants of
credit. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import add
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, any_, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.budgets.accounts import NO_CURRENCY, Charge
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.paging import having
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow
from tenora_platform.times import LATEST
from tenora_platform.usage.ids import event_of, event_text, occupancy_of, occupancy_text
from tenora_platform.usage.reading import Span as Rest
from tenora_platform.usage.reading import pieces, tenant_no
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tables import (
    OccupancyEventRow,
    UsageDayRow,
    UsageEventRow,
    UsageHourRow,
    UsageSeriesRow,
)

_HELD_LATE = timedelta(days=64)
"""So long after it ended occupancy may be stored: days of storage are caught up on for two months.
The index is by when it ended."""


@dataclass(frozen=True, slots=True)
class Span:
    """Of one account: events that ended from `start` until before `end`, of one key or of all, and
    were charged in one currency."""

    currency: str
    start: datetime
    end: datetime | None = None
    key_id: str | None = None


async def spent(session: AsyncSession, tenant_id: str, span: Span) -> int:
    """Nanos, each event's whole amount rounded up once."""
    found = await _by_version(session, tenant_id, span, _nanos_of, _nanos)
    return int((await _by_currency(session, found)).get(span.currency, Decimal(0)))


async def amounts_spent(
    session: AsyncSession, tenant_id: str, start: datetime, end: datetime
) -> dict[str, Decimal]:
    """Of what ended in between, by currency, to all twelve decimals."""
    span = Span("", start, end)
    return await _by_currency(
        session, await _by_version(session, tenant_id, span, _amount_of, _amount)
    )


async def currencies_had(session: AsyncSession, tenant_id: str, since: datetime) -> list[str]:
    """Those of the lists by which anything was charged from that day on, and of credit that was
    ever granted."""
    days = select(UsageDayRow.price_version_no).where(
        UsageDayRow.tenant_id == tenant_id, UsageDayRow.day >= since.date()
    )
    charged = select(PriceVersionRow.currency).where(PriceVersionRow.no.in_(days))
    granted = select(CreditGrantRow.currency).where(CreditGrantRow.tenant_id == tenant_id)
    return sorted(await session.scalars(charged.union(granted)))


async def _by_currency(session: AsyncSession, found: Mapping[int, Decimal]) -> dict[str, Decimal]:
    """Sums of price versions as sums of their currencies; what had no price is in none."""
    query = select(PriceVersionRow.no, PriceVersionRow.currency)
    total: dict[str, Decimal] = {}
    for no, currency in await session.execute(query.where(PriceVersionRow.no.in_(list(found)))):
        total[currency] = exact_sum((total.get(currency, Decimal(0)), found[no]))
    return total


_Rated = type[UsageEventRow] | type[OccupancyEventRow]
_Summed = type[UsageDayRow] | type[UsageHourRow]


def _nanos(row: _Rated) -> ColumnElement[Decimal]:
    return func.ceil(row.amount * 10**9)


def _currency(row: _Rated) -> ColumnElement[str]:
    version = PriceVersionRow
    found = select(version.currency).where(version.no == row.price_version_no).scalar_subquery()
    return func.coalesce(found, NO_CURRENCY)


def _amount(row: _Rated) -> ColumnElement[Decimal | None]:
    return row.amount.expression


def _nanos_of(row: _Summed) -> ColumnElement[int]:
    return row.charged_nanos.expression


def _amount_of(row: _Summed) -> ColumnElement[Decimal]:
    return reduce(add, (getattr(row, column) for column in AMOUNTS.values()))


async def _by_version(
    session: AsyncSession,
    tenant_id: str,
    span: Span,
    of_sum: Callable[[_Summed], ColumnElement[Any]],
    of_event: Callable[[_Rated], ColumnElement[Any]],
) -> dict[int, Decimal]:
    """By price version, of any currency: of whole days and hours from the sums, of the rest from
    the events."""
    of = pieces(span.start, span.end or LATEST)
    queries: list[Any] = []
    for row, begins, spans in (
        (UsageDayRow, UsageDayRow.day, [(each.start.date(), each.end.date()) for each in of.days]),
        (UsageHourRow, UsageHourRow.hour, [(each.start, each.end) for each in of.hours]),
    ):
        query = select(row.price_version_no, func.sum(of_sum(row)))
        query = query.where(row.tenant_id == tenant_id)
        if span.key_id is not None:
            query = query.where(row.series_id.in_(_series_of(tenant_id, span.key_id)))
        query = query.group_by(row.price_version_no)
        queries += [query.where(begins >= first, begins < end) for first, end in spans]
    for each in of.events:
        queries += _edge(tenant_id, each, span.key_id, of_event)
    found: dict[int, Decimal] = {}
    for query in queries:
        for row_of in await session.execute(query):
            no, amount = int(row_of[0]), Decimal(row_of[1])
            found[no] = exact_sum((found.get(no, Decimal(0)), amount))
    return found


def _edge(
    tenant_id: str, span: Rest, key_id: str | None, of: Callable[[_Rated], ColumnElement[Any]]
) -> list[Any]:
    queries: list[Any] = []
    for row, ended in (
        (UsageEventRow, UsageEventRow.event_time),
        (OccupancyEventRow, OccupancyEventRow.ends),
    ):
        query: Any = select(row.price_version_no, func.sum(of(row))).where(
            row.tenant_no == tenant_no(tenant_id),
            row.price_version_no.is_not(None),
            ended >= span.start,
            ended < span.end,
        )
        if key_id is not None:
            query = query.where(row.series_id.in_(_series_of(tenant_id, key_id)))
        queries.append(query.group_by(row.price_version_no))
    return queries


def _series_of(tenant_id: str, key_id: str) -> Select[int]:
    """Of the key, and of those that come from it."""
    children = select(ApiKeyRow.id).where(
        ApiKeyRow.tenant_id == tenant_id, literal(key_id) == any_(ApiKeyRow.lineage)
    )
    key = UsageSeriesRow.api_key_id
    return select(UsageSeriesRow.id).where(
        UsageSeriesRow.tenant_id == tenant_id, (key == key_id) | key.in_(children)
    )


async def lately_stored(
    session: AsyncSession, tenant_id: str, *, within: timedelta, ids: Sequence[str]
) -> list[Charge]:
    """The rated events that were stored within this time, and those of `ids`."""
    query = (
        select(
            UsageSeriesRow.kind,
            UsageEventRow.request,
            UsageEventRow.sequence,
            UsageSeriesRow.api_key_id,
            ApiKeyRow.lineage,
            UsageEventRow.event_time,
            _nanos(UsageEventRow),
            _currency(UsageEventRow),
        )
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == UsageSeriesRow.api_key_id)
        .where(
            UsageEventRow.tenant_no == tenant_no(tenant_id),
            UsageEventRow.price_version_no.is_not(None),
        )
    )
    # The index is by when it ended; what ended longer before it was stored, `ids` has.
    new = query.where(
        UsageEventRow.event_time >= func.now() - 30 * within,
        UsageEventRow.ingested_at >= func.now() - within,
    )
    held = [id_ for each in ids if (id_ := occupancy_of(each)) is not None]
    asked = [event_of(each).key for each in ids if occupancy_of(each) is None]
    named = query.where(tuple_(UsageEventRow.request, UsageEventRow.sequence).in_(asked))
    found: dict[str, Charge] = {}
    for part in (new, named) if asked else (new,):
        for kind, request, sequence, key, lineage, at, nanos, of in await session.execute(part):
            event_id = event_text(kind, request, sequence)
            keys = (key, *(lineage or ())) if key else ()
            found[event_id] = Charge(event_id, tenant_id, keys, at, int(nanos), of)
    return [*found.values(), *await _lately_held(session, tenant_id, within, held)]


async def _lately_held(
    session: AsyncSession, tenant_id: str, within: timedelta, ids: Sequence[UUID]
) -> list[Charge]:
    """The same of occupancy."""
    row = OccupancyEventRow
    query = select(row.id, row.ends, _nanos(row), _currency(row)).where(
        row.tenant_no == tenant_no(tenant_id),
        row.price_version_no.is_not(None),
        (row.ingested_at >= func.now() - within) & (row.ends >= func.now() - _HELD_LATE)
        | row.id.in_(ids),
    )
    return [
        Charge(occupancy_text(id_), tenant_id, (), at, int(nanos), of)
        for id_, at, nanos, of in await session.execute(query)
    ]


async def grants(
    session: AsyncSession, tenant_id: str, *, lock: bool = False
) -> list[CreditGrantRow]:
    """All of a tenant's, the oldest first."""
    query = (
        select(CreditGrantRow)
        .where(CreditGrantRow.tenant_id == tenant_id)
        .order_by(CreditGrantRow.created_at, CreditGrantRow.id)
    )
    return list(await session.scalars(query.with_for_update(key_share=True) if lock else query))


async def page_of_grants(
    session: AsyncSession, *, asked: str | None, after: str | None, limit: int
) -> list[tuple[CreditGrantRow, str]]:
    """Of all tenants, each with its tenant's name, newest first; one more than `limit`."""
    query = (
        select(CreditGrantRow, TenantRow.name)
        .join(TenantRow, TenantRow.id == CreditGrantRow.tenant_id)
        .where(*having(asked, TenantRow.name, TenantRow.id, CreditGrantRow.id, CreditGrantRow.note))
        .order_by(CreditGrantRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(CreditGrantRow.id < after)
    return [(grant, name) for grant, name in await session.execute(query)]


async def list_grants(
    session: AsyncSession, tenant_id: str, *, after: str | None, limit: int
) -> list[CreditGrantRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(CreditGrantRow)
        .where(CreditGrantRow.tenant_id == tenant_id)
        .order_by(CreditGrantRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(CreditGrantRow.id < after)
    return list(await session.scalars(query))
