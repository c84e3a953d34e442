"""Queries of the history: measures by step and group, added up by the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, cast, func, select, true
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.telemetry import BOUNDS_S
from tenora_platform.history.tables import (
    EngineHourRow,
    EngineMinuteRow,
    HistoryMarkRow,
    ServiceHourRow,
    ServiceMinuteRow,
)
from tenora_platform.history.window import Window

Group = tuple[str | None, str | None]
"""(tenant's id, class); None: all of them together."""
_BUCKETS = len(BOUNDS_S) + 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows, and how they are put together."""

    window: Window
    group_by: tuple[str, ...] = ()
    tenant_id: str | None = None
    service_class: str | None = None


def service_table(window: Window) -> type[ServiceMinuteRow] | type[ServiceHourRow]:
    return ServiceHourRow if window.by_hour else ServiceMinuteRow


def engine_table(window: Window) -> type[EngineMinuteRow] | type[EngineHourRow]:
    return EngineHourRow if window.by_hour else EngineMinuteRow


async def sums(
    session: AsyncSession, asked: Asked, columns: Sequence[str]
) -> dict[Group, dict[int, dict[str, Any]]]:
    """Group -> step -> column -> its sum."""
    table = service_table(asked.window)
    wanted = [func.sum(getattr(table, name)).label(name) for name in columns]
    return await _grouped(session, asked, wanted)


async def histograms(
    session: AsyncSession, asked: Asked, columns: Sequence[str]
) -> dict[Group, dict[int, dict[str, Any]]]:
    """The same of histograms: column -> counts by bound."""
    table = service_table(asked.window)
    wanted = [
        array(
            [
                cast(func.coalesce(func.sum(getattr(table, name)[bucket + 1]), 0), BigInteger)
                for bucket in range(_BUCKETS)
            ]
        ).label(name)
        for name in columns
    ]
    return await _grouped(session, asked, wanted)


async def counts(
    session: AsyncSession, asked: Asked, column: str
) -> dict[tuple[Group, str], dict[int, int]]:
    """(group, name) -> step -> how many, of counts by name."""
    table = service_table(asked.window)
    each = func.jsonb_each_text(getattr(table, column)).table_valued("key", "value").lateral()
    step = _step(table.at, asked.window)
    keys = _keys(table, asked)
    query = (
        select(step, *keys, each.c.key, func.sum(cast(each.c.value, BigInteger)))
        .select_from(table)
        .join(each, true())
        .where(*_of(table, asked))
        .group_by(step, *keys, each.c.key)
    )
    found: dict[tuple[Group, str], dict[int, int]] = defaultdict(dict)
    for at, *rest, name, count in await session.execute(query):
        found[_group(rest, asked), name][asked.window.place(float(at))] = int(count)
    return found


async def engine_rows(
    session: AsyncSession, window: Window, columns: Iterable[str]
) -> dict[int, dict[str, Any]]:
    """Step -> column -> its sum, or the largest of what ends in `_max`. Steps without a row are
    missing: nobody looked."""
    table = engine_table(window)
    step = _step(table.at, window)
    wanted = [
        (func.max if name.endswith("_max") else func.sum)(getattr(table, name)).label(name)
        for name in columns
    ]
    query = select(step.label("step"), *wanted).where(*_within(table.at, window)).group_by(step)
    rows = (await session.execute(query)).mappings()
    return {window.place(float(row["step"])): dict(row) for row in rows}


async def engine_counts(
    session: AsyncSession, window: Window, column: str
) -> dict[str, dict[int, int]]:
    """Name -> step -> how many."""
    table = engine_table(window)
    each = func.jsonb_each_text(getattr(table, column)).table_valued("key", "value").lateral()
    step = _step(table.at, window)
    query = (
        select(step, each.c.key, func.sum(cast(each.c.value, BigInteger)))
        .select_from(table)
        .join(each, true())
        .where(*_within(table.at, window))
        .group_by(step, each.c.key)
    )
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for at, name, count in await session.execute(query):
        found[name][window.place(float(at))] = int(count)
    return found


async def known_until(session: AsyncSession) -> datetime | None:
    """When somebody looked last."""
    found: datetime | None = await session.scalar(select(func.max(HistoryMarkRow.at)))
    return found


async def has_rows_of(session: AsyncSession, window: Window, tenant_id: str) -> bool:
    """Whether the engine tells the tenant apart, or did in this window."""
    table = service_table(window)
    counted = table.finished + table.output_tokens + table.ttft_promised
    query = select(table.at).where(
        table.tenant_id == tenant_id, counted > 0, *_within(table.at, window)
    )
    return await session.scalar(query.limit(1)) is not None


async def _grouped(
    session: AsyncSession, asked: Asked, wanted: Sequence[ColumnElement[Any]]
) -> dict[Group, dict[int, dict[str, Any]]]:
    table = service_table(asked.window)
    step = _step(table.at, asked.window)
    keys = _keys(table, asked)
    query: Select[Any] = (
        select(step, *keys, *wanted).where(*_of(table, asked)).group_by(step, *keys)
    )
    found: dict[Group, dict[int, dict[str, Any]]] = defaultdict(dict)
    names = [each.name for each in wanted]
    for at, *rest in await session.execute(query):
        group = _group(rest[: len(keys)], asked)
        values = dict(zip(names, rest[len(keys) :], strict=True))
        found[group][asked.window.place(float(at))] = values
    return found


def _step(at: Any, window: Window) -> ColumnElement[Any]:
    """The beginning of the step, as unix time."""
    seconds = func.extract("epoch", at)
    return func.floor(seconds / window.step_s) * window.step_s


def _within(at: Any, window: Window) -> tuple[ColumnElement[bool], ...]:
    start, end = window.bounds
    return at >= start, at < end


def _of(table: Any, asked: Asked) -> list[ColumnElement[bool]]:
    found = list(_within(table.at, asked.window))
    if asked.tenant_id is not None:
        found.append(table.tenant_id == asked.tenant_id)
    if asked.service_class is not None:
        found.append(table.class_ == asked.service_class)
    return found


def _keys(table: Any, asked: Asked) -> list[Any]:
    columns: Mapping[str, Any] = {"tenant": table.tenant_id, "class": table.class_}
    return [columns[name] for name in ("tenant", "class") if name in asked.group_by]


def _group(keys: Sequence[Any], asked: Asked) -> Group:
    left = list(keys)
    tenant = left.pop(0) if "tenant" in asked.group_by else None
    return tenant, left.pop(0) if "class" in asked.group_by else None
