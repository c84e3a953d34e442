"""What adapters were used for and cost, from the sums of usage, by adapter. Queries in one tenant's
session; no decisions, no commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Select, any_, func, select
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.db import in_slices
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tables import UsageDayRow, UsageHourRow, UsageSeriesRow

HOURS = 24


@dataclass
class Traffic:
    """Of one adapter. `by_hour` are requests, the last of the hour that runs."""

    by_hour: list[int] = field(default_factory=lambda: [0] * HOURS)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


def traffic_since(now: datetime) -> datetime:
    """The last 24 hours as the sums have them: this hour, and the 23 before it."""
    this = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return this - timedelta(hours=HOURS - 1)


def month_of(now: datetime) -> date:
    return now.astimezone(UTC).date().replace(day=1)


async def series_of(
    session: AsyncSession, tenant_id: str, adapter_of: Mapping[str, str]
) -> dict[int, str]:
    """The adapter of every series that these versions (id -> adapter's) have."""
    series = UsageSeriesRow
    query = select(series.id, series.adapter_version_id).where(
        series.tenant_id == tenant_id, series.adapter_version_id.in_(list(adapter_of))
    )
    found = await session.execute(query)
    return {number: adapter_of[version] for number, version in found if version is not None}


async def traffic(
    session: AsyncSession, tenant_id: str, series: Mapping[int, str], since: datetime
) -> dict[str, Traffic]:
    """By adapter, of those that had any. Every hour is named: so the primary key finds the rows."""
    row = UsageHourRow
    hours = [since + timedelta(hours=at) for at in range(HOURS)]
    query = (
        select(
            row.series_id,
            row.hour,
            func.sum(row.requests),
            func.sum(row.uncached_prefill),
            func.sum(row.cached_prefill),
            func.sum(row.output),
        )
        .where(
            row.tenant_id == tenant_id,
            row.hour == any_(array(hours)),
            row.series_id == any_(array(list(series))),
        )
        .group_by(row.series_id, row.hour)
    )
    found: dict[str, Traffic] = defaultdict(Traffic)
    if not series:
        return found
    for number, hour, requests, uncached, cached, output in await session.execute(query):
        each = found[series[number]]
        each.by_hour[int((hour - since).total_seconds()) // 3600] += int(requests)
        each.prompt_tokens += int(uncached) + int(cached)
        each.cached_tokens += int(cached)
        each.output_tokens += int(output)
    return found


async def costs(
    session: AsyncSession, tenant_id: str, series: Mapping[int, str], now: datetime
) -> dict[str, dict[str, Decimal]]:
    """Amounts of this month by adapter and currency, of those that cost anything: all meters."""
    row, first = UsageDayRow, month_of(now)
    days = [first + timedelta(days=at) for at in range(now.astimezone(UTC).day)]
    query = (
        select(row.series_id, PriceVersionRow.currency, _amount())
        .join(PriceVersionRow, PriceVersionRow.no == row.price_version_no)
        .where(
            row.tenant_id == tenant_id,
            row.day == any_(array(days)),
            row.series_id == any_(array(list(series))),
        )
        .group_by(row.series_id, PriceVersionRow.currency)
    )
    found: dict[str, dict[str, Decimal]] = defaultdict(dict)
    if not series:
        return found
    for number, currency, amount in await session.execute(query):
        of = found[series[number]]
        of[currency] = exact_sum((of.get(currency, Decimal(0)), amount))
    return found


async def requests_by_adapter(
    session: AsyncSession, tenant_id: str, since: datetime
) -> dict[str, int]:
    """Of all that had any."""
    row = UsageHourRow
    summed = (
        select(row.series_id, func.sum(row.requests).label("key"))
        .where(row.tenant_id == tenant_id, row.hour >= since)
        .group_by(row.series_id)
    )
    return {each: int(key) async for each, key in in_slices(session, _by_adapter(summed))}


async def cost_by_adapter(session: AsyncSession, tenant_id: str, since: date) -> dict[str, Decimal]:
    """Amounts, whatever their currency, of all that cost anything."""
    row = UsageDayRow
    summed = (
        select(row.series_id, _amount().label("key"))
        .where(row.tenant_id == tenant_id, row.day >= since)
        .group_by(row.series_id)
    )
    return {each: key async for each, key in in_slices(session, _by_adapter(summed))}


def _by_adapter(by_series: Select[Any, Any]) -> Select[Any, Any]:
    """Summed by series first: there are far fewer of them than hours or days of them."""
    summed = by_series.cte("summed").prefix_with("MATERIALIZED")
    version = AdapterVersionRow
    return (
        select(version.adapter_id, func.sum(summed.c.key))
        .select_from(summed)
        .join(UsageSeriesRow, UsageSeriesRow.id == summed.c.series_id)
        .join(version, version.id == UsageSeriesRow.adapter_version_id)
        .group_by(version.adapter_id)
    )


def _amount() -> ColumnElement[Decimal]:
    columns = [getattr(UsageDayRow, column) for column in AMOUNTS.values()]
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    amount: ColumnElement[Decimal] = func.sum(total)
    return amount
