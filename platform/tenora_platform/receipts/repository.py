"""Queries that read requests out of usage events, with all that a receipt says of them. Tenants'
own sessions see their rows only; the operator's see all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ScalarSelect, and_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import repository as billing
from tenora_platform.billing.price_lists import PriceList
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow
from tenora_platform.usage.ids import OTHER, request_of, request_text
from tenora_platform.usage.keys import is_of, requests_table
from tenora_platform.usage.tables import UnratedEventRow, UsageEventRow, UsageSeriesRow

_SERVERS = "req"  # of the ids that the server gives HTTP answers


class Event(NamedTuple):
    row: UsageEventRow
    series: UsageSeriesRow


class Adapter(NamedTuple):
    name: str
    version: int


@dataclass(frozen=True)
class Request:
    """All sequences of one request that have ended, by their places."""

    events: tuple[Event, ...]

    @property
    def id(self) -> str:
        row, series = self.events[0]
        return request_text(series.kind, row.request)


async def find(session: AsyncSession, name: str, tenant_id: str | None = None) -> Request | None:
    """By the answer's id, or by the x-request-id of the HTTP answer; where a client gave one to
    several requests, the newest. `tenant_id` None: of whichever tenant."""
    kind, request = request_of(name)
    for found in await load(session, [request]):
        row, series = found.events[0]
        of_server = kind == _SERVERS and row.x_request_id is None
        if kind in (series.kind, OTHER) or of_server:
            return found
    query = (
        select(UsageEventRow.request)
        .where(UsageEventRow.x_request_id == name, UsageEventRow.x_request_id != "")
        .order_by(UsageEventRow.request.desc())
        .limit(1)
    )
    if tenant_id is not None:
        query = query.where(UsageEventRow.tenant_no == _number(tenant_id))
    newest = await session.scalar(query)
    return None if newest is None else (await load(session, [newest]))[0]


async def named(
    session: AsyncSession, name: str, tenant_id: str | None, after: UUID | None, limit: int
) -> list[UUID]:
    """All requests that `name` may mean, newest first: an answer's id, that of one of its usage
    events, or an x-request-id, which a client may have given to several."""
    answers, _, sequence = name.rpartition(":")
    found = await find(session, answers if answers and sequence.isdigit() else name, tenant_id)
    query = select(UsageEventRow.request).where(
        UsageEventRow.x_request_id == name, UsageEventRow.x_request_id != ""
    )
    if tenant_id is not None:
        query = query.where(UsageEventRow.tenant_no == _number(tenant_id))
    if after is not None:
        query = query.where(UsageEventRow.request < after)
    query = query.distinct().order_by(UsageEventRow.request.desc()).limit(limit)
    requests = list(await session.scalars(query))
    if requests or found is None or tenant_id not in (None, found.events[0].series.tenant_id):
        return requests
    own = found.events[0].row.request
    return [own] if after is None or own < after else []


def _number(tenant_id: str) -> ScalarSelect[int]:
    return select(TenantRow.no).where(TenantRow.id == tenant_id).scalar_subquery()


async def load(session: AsyncSession, requests: Sequence[UUID]) -> list[Request]:
    """In the order of `requests`, without those that there are not."""
    these = requests_table(requests)
    query = (
        select(UsageEventRow, UsageSeriesRow)
        .join(these, is_of(these))
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .order_by(UsageEventRow.request, UsageEventRow.sequence)
    )
    found: dict[UUID, list[Event]] = {}
    for row, series in await session.execute(query):
        found.setdefault(row.request, []).append(Event(row, series))
    return [Request(tuple(found[each])) for each in requests if each in found]


async def adapters(session: AsyncSession, requests: Iterable[Request]) -> dict[str, Adapter]:
    """The names of the adapters that ran, by the ids of their versions."""
    ids = {event.series.adapter_version_id for each in requests for event in each.events}
    query = (
        select(AdapterVersionRow.id, AdapterRow.name, AdapterVersionRow.number)
        .join(
            AdapterRow,
            and_(
                AdapterRow.id == AdapterVersionRow.adapter_id,
                AdapterRow.tenant_id == AdapterVersionRow.tenant_id,
            ),
        )
        .where(AdapterVersionRow.id.in_(ids - {None}))
    )
    return {of: Adapter(name, number) for of, name, number in await session.execute(query)}


@dataclass(frozen=True, slots=True)
class Names:
    """By id."""

    tenants: Mapping[str, str]
    keys: Mapping[str, str]


async def names_of(session: AsyncSession, requests: Sequence[Request]) -> Names:
    """Of whose requests these are, and of the keys they came with, as far as the session sees."""
    series = [event.series for each in requests for event in each.events]
    tenants = select(TenantRow.id, TenantRow.name).where(
        TenantRow.id.in_({each.tenant_id for each in series})
    )
    keys = select(ApiKeyRow.id, ApiKeyRow.name).where(
        ApiKeyRow.id.in_({each.api_key_id for each in series} - {None})
    )
    return Names(
        tenants={row.id: row.name for row in await session.execute(tenants)},
        keys={row.id: row.name for row in await session.execute(keys)},
    )


async def prices(session: AsyncSession, requests: Sequence[Request]) -> dict[int, PriceList]:
    """The lists by which they were rated, by number."""
    times = [event.row.event_time for each in requests for event in each.events]
    if not times:
        return {}
    lists = await billing.price_lists(session, min(times), max(times))
    return {price.no: price for price in lists}


async def waiting(session: AsyncSession, request: Request) -> dict[int, UnratedEventRow]:
    """Those of its sequences that wait for a price, by place."""
    keys = [(event.row.request, event.row.sequence) for event in request.events]
    query = select(UnratedEventRow).where(
        tuple_(UnratedEventRow.request, UnratedEventRow.sequence).in_(keys)
    )
    return {row.sequence: row for row in await session.scalars(query) if row.sequence is not None}
