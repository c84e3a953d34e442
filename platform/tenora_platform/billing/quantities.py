"""Queries over how much was used: so far in a month's tiers, and in a whole month. No decisions,
no commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import cast

from sqlalchemy import func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.preview import MonthUsed
from tenora_platform.billing.price_lists import METERS, Meter, PriceList, Scope
from tenora_platform.billing.rating import Volume
from tenora_platform.billing.tables import VolumeRow
from tenora_platform.billing.terms import Customer, Stay
from tenora_platform.tenants.plan_history import plan_histories
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tables import UsageDayRow, UsageSeriesRow


async def take_volumes(session: AsyncSession, wanted: Mapping[Volume, int]) -> dict[Volume, int]:
    """Count so much more, and say where each stood before. The rows are locked until the
    transaction ends, each after the ones before it in order, so that two workers never wait for
    each other; and if it fails, the places are free again."""
    if not wanted:
        return {}
    statement = insert(VolumeRow).values(
        [{**_columns(volume), "quantity": wanted[volume]} for volume in sorted(wanted)]
    )
    statement = statement.on_conflict_do_update(
        constraint="pk_usage_volumes",
        set_={"quantity": VolumeRow.quantity + statement.excluded.quantity},
    )
    rows = await session.execute(statement.returning(*_VOLUME, VolumeRow.quantity))
    found = {_volume(*row): row[-1] for row in rows}
    return {volume: found[volume] - quantity for volume, quantity in wanted.items()}


async def volumes_of(session: AsyncSession, tenant_id: str, since: date) -> dict[Volume, int]:
    """A tenant's, of the months that begin on that day or later."""
    query = select(*_VOLUME, VolumeRow.quantity).where(
        VolumeRow.tenant_id == tenant_id, VolumeRow.month >= since
    )
    return {_volume(*row): row[-1] for row in await session.execute(query)}


_VOLUME = (
    VolumeRow.tenant_id,
    VolumeRow.month,
    VolumeRow.price_version_no,
    VolumeRow.model,
    VolumeRow.class_,
    VolumeRow.meter,
)


def _volume(
    tenant_id: str, month: date, no: int, model: str, class_: str, meter: str, _: int
) -> Volume:
    return Volume(tenant_id, month, no, model, class_, cast("Meter", meter))


def _columns(volume: Volume) -> dict[str, object]:
    return dict(zip((column.key for column in _VOLUME), volume, strict=True))


async def customers_of(
    session: AsyncSession, end: datetime, tenants: Collection[str]
) -> list[Customer]:
    """By id, these and those that there were before `end`."""
    row = TenantRow
    query = (
        select(row.id, row.created_at, row.deleted_at)
        .where(or_(row.created_at < end, row.id.in_(tenants)), ~row.internal)
        .order_by(row.id)
    )
    found = (await session.execute(query)).all()
    plans = await plan_histories(session, [each.id for each in found])
    return [Customer(tenant, plans[tenant], Stay(since, until)) for tenant, since, until in found]


async def month_used(
    session: AsyncSession, month: date, lists: Iterable[PriceList]
) -> list[MonthUsed]:
    """What every tenant but the platform's own has used of every meter in the month that begins on
    this day."""
    by_no = {price.no: price for price in lists}
    series = UsageSeriesRow
    keys = (
        series.adapter_id,
        series.tenant_id,
        series.plan,
        series.model,
        series.class_,
        UsageDayRow.price_version_no,
    )
    columns = (*METERS, *AMOUNTS.values())
    query = (
        select(*keys, *(func.sum(getattr(UsageDayRow, column)) for column in columns))
        .join(series, series.id == UsageDayRow.series_id)
        .where(
            UsageDayRow.day >= month,
            UsageDayRow.day < (month + timedelta(days=32)).replace(day=1),
            UsageDayRow.tenant_id.not_in(select(TenantRow.id).where(TenantRow.internal)),
        )
        .group_by(*keys)
    )
    return [
        MonthUsed(
            scope=Scope(*row[:4]),
            class_=row[4],
            meter=meter,
            quantity=int(quantity),
            amount=amount,
            rated_by=by_no.get(row[5]),
        )
        for row in await session.execute(query)
        for meter, quantity, amount in zip(METERS, row[6:13], row[13:], strict=True)
        if quantity
    ]
