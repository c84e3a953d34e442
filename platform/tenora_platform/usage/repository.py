"""Queries that store usage events and sum them up. Tenants' own sessions see their rows only; the
operator's see all. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, and_, exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import UsageRecord
from tenora_platform.billing.tables import RatedLineRow, UnratedEventRow
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.tables import DeadLetterRow, UsageEventRow

Group = Literal["tenant", "adapter", "adapter_version", "api_key", "model"]

_COLUMNS: Mapping[Group, tuple[tuple[str, ColumnElement[Any]], ...]] = {
    "tenant": (("tenant_id", UsageEventRow.tenant_id.expression),),
    "adapter": (("adapter", AdapterRow.name.expression),),
    "adapter_version": (
        ("adapter", AdapterRow.name.expression),
        ("adapter_version", AdapterVersionRow.number.expression),
    ),
    "api_key": (("api_key_id", UsageEventRow.api_key_id.expression),),
    "model": (("model", UsageEventRow.model.expression),),
}


@dataclass(frozen=True)
class Window:
    """Which events, and how they are put together. `unit` is PostgreSQL's for `date_trunc`."""

    start: datetime
    end: datetime  # exclusive
    unit: Literal["hour", "day", "month"]
    groups: tuple[Group, ...]
    tenant_id: str | None  # None: all tenants (operator)


async def known_tenants(session: AsyncSession, tenant_ids: Iterable[str]) -> set[str]:
    query = select(TenantRow.id).where(TenantRow.id.in_(set(tenant_ids)))
    return set(await session.scalars(query))


async def add_events(session: AsyncSession, events: Sequence[Mapping[str, object]]) -> set[str]:
    """Store what is not stored yet; returns the ids of what is new."""
    if not events:
        return set()
    statement = (
        insert(UsageEventRow)
        .values(list(events))
        .on_conflict_do_nothing()
        .returning(UsageEventRow.event_id)
    )
    return set(await session.scalars(statement))


async def without_event(session: AsyncSession, records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Those of the engine's records that are no event yet."""
    ids = [record.event_id for record in records]
    query = select(UsageEventRow.event_id).where(UsageEventRow.event_id.in_(ids))
    stored = set(await session.scalars(query))
    return [record for record in records if record.event_id not in stored]


async def add_dead_letter(session: AsyncSession, values: Mapping[str, object]) -> None:
    await session.execute(insert(DeadLetterRow).values(dict(values)).on_conflict_do_nothing())


_OPEN = ~exists().where(UsageEventRow.event_id == DeadLetterRow.event_id)
"""Of dead letters: those that no event has made good."""


async def open_letters(session: AsyncSession, after: str, limit: int) -> list[DeadLetterRow]:
    """Dead letters that are not made good yet, by id."""
    query = (
        select(DeadLetterRow)
        .where(_OPEN, DeadLetterRow.event_id > after)
        .order_by(DeadLetterRow.event_id)
        .limit(limit)
    )
    return list(await session.scalars(query))


async def count_open_letters(session: AsyncSession) -> int:
    query = select(func.count()).select_from(DeadLetterRow).where(_OPEN)
    return await session.scalar(query) or 0


async def last_letters(session: AsyncSession, limit: int) -> list[DeadLetterRow]:
    """The newest that are not made good yet."""
    query = select(DeadLetterRow).where(_OPEN).order_by(DeadLetterRow.received_at.desc())
    return list(await session.scalars(query.limit(limit)))


def _grouped(
    window: Window, sums: Sequence[ColumnElement[Any]], *more: ColumnElement[Any]
) -> Select[Any]:
    """Sums of events by bucket, by the window's groups, and by `more` columns."""
    bucket = func.date_trunc(window.unit, UsageEventRow.event_time, "UTC").label("bucket")
    columns = {name: column for group in window.groups for name, column in _COLUMNS[group]}
    labelled = [column.label(name) for name, column in columns.items()]
    conditions: list[ColumnElement[bool]] = [
        UsageEventRow.event_time >= window.start,
        UsageEventRow.event_time < window.end,
    ]
    if window.tenant_id is not None:
        conditions.append(UsageEventRow.tenant_id == window.tenant_id)
    keys = [bucket, *labelled, *more]
    query = select(*keys, *sums).select_from(UsageEventRow).where(and_(*conditions))
    if "adapter" in columns:
        query = query.outerjoin(
            AdapterVersionRow, AdapterVersionRow.id == UsageEventRow.adapter_version_id
        ).outerjoin(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
    return query.group_by(*keys).order_by(*keys)


async def sum_usage(session: AsyncSession, window: Window) -> Sequence[Mapping[str, Any]]:
    """`bucket`, the groups' columns, and the meters."""
    query = _grouped(
        window,
        [
            func.count().filter(UsageEventRow.sequence == 0).label("requests"),
            func.count().label("sequences"),
            func.sum(UsageEventRow.prompt_tokens).label("prompt_tokens"),
            func.sum(UsageEventRow.cached_tokens).label("cached_tokens"),
            func.sum(UsageEventRow.output_tokens).label("output_tokens"),
        ],
    )
    return await _rows(session, query)


async def sum_costs(session: AsyncSession, window: Window) -> Sequence[Mapping[str, Any]]:
    """`bucket`, the groups' columns, `currency`, `meter`, `quantity` and `amount` (Decimal)."""
    query = _grouped(
        window,
        [
            func.sum(RatedLineRow.quantity).label("quantity"),
            func.sum(RatedLineRow.amount).label("amount"),
        ],
        RatedLineRow.currency.expression,
        RatedLineRow.meter.expression,
    ).join(RatedLineRow, RatedLineRow.event_id == UsageEventRow.event_id)
    return await _rows(session, query)


async def count_unrated(session: AsyncSession, window: Window) -> Sequence[Mapping[str, Any]]:
    """`bucket`, the groups' columns and `events` that wait for a price."""
    query = _grouped(window, [func.count().label("events")]).join(
        UnratedEventRow, UnratedEventRow.event_id == UsageEventRow.event_id
    )
    return await _rows(session, query)


async def _rows(session: AsyncSession, query: Select[Any]) -> list[Mapping[str, Any]]:
    return [dict(row) for row in (await session.execute(query)).mappings()]
