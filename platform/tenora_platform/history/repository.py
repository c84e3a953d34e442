"""Queries of the history: measures by step and group, added up by the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, FromClause, cast, func, select, true, tuple_
from sqlalchemy.dialects.postgresql import array
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.telemetry import BOUNDS_S
from tenora_platform.db import in_slices
from tenora_platform.history.metrics import Metric
from tenora_platform.history.tables import (
    EngineHourRow,
    EngineMinuteRow,
    HistoryMarkRow,
    ServiceHourRow,
    ServiceMinuteRow,
)
from tenora_platform.history.window import Window


class Group(NamedTuple):
    """What a series is of; None: all of them together. `kind`: the name of what is counted."""

    tenant_id: str | None
    service_class: str | None
    kind: str | None = None


Steps = dict[int, dict[str, Any]]
"""Step -> column -> its sum."""
COUNT = "count"
"""The column of counts by name."""
_BUCKETS = len(BOUNDS_S) + 1
_KEYS = ("tenant", "class", "kind")  # in the order of a group's


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows, and how they are put together."""

    window: Window
    group_by: tuple[str, ...] = ()
    tenant_id: str | None = None
    service_class: str | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The largest groups, the largest first, and how many there are; `sums` over all of them, of
    each column that is a number."""

    groups: tuple[Group, ...]
    total: int
    sums: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of one metric: by which keys they are grouped, what is added up of them, and by what
    their groups are ranked."""

    rows: FromClause
    at: Any
    keys: Mapping[str, ColumnElement[Any]]
    conditions: Sequence[ColumnElement[bool]]
    values: Mapping[str, ColumnElement[Any]]
    sizes: Sequence[ColumnElement[Any]]

    def group(self, keys: Sequence[Any]) -> Group:
        named = dict(zip(self.keys, keys, strict=True))
        return Group(named.get("tenant"), named.get("class"), named.get("kind"))


def service_table(window: Window) -> type[ServiceMinuteRow] | type[ServiceHourRow]:
    return ServiceHourRow if window.by_hour else ServiceMinuteRow


def engine_table(window: Window) -> type[EngineMinuteRow] | type[EngineHourRow]:
    return EngineHourRow if window.by_hour else EngineMinuteRow


async def ranked(session: AsyncSession, asked: Asked, metric: Metric, limit: int) -> Ranked:
    """The `limit` largest groups of a metric; of parts those that missed most."""
    source, names = _source(asked, metric), []
    keys = list(source.keys.values())
    wanted: list[ColumnElement[Any]] = [func.count().over()]
    if metric.form != "quantiles":
        names = list(source.values)
        wanted += [func.sum(value).over() for value in source.values.values()]
    query = (
        select(*keys, *wanted)
        .select_from(source.rows)
        .where(*source.conditions)
        .group_by(*keys)
        .having(func.count() > 0)
        .order_by(*(size.desc() for size in source.sizes), *keys)
        .limit(limit)
    )
    rows = (await session.execute(query)).all()
    if not rows:
        return Ranked((), 0, {})
    total, *sums = rows[0][len(keys) :]
    groups = tuple(source.group(row[: len(keys)]) for row in rows)
    return Ranked(groups, total, dict(zip(names, sums, strict=True)))


async def steps_of(
    session: AsyncSession, asked: Asked, metric: Metric, of: Ranked
) -> dict[Group, Steps]:
    """Of the groups that were ranked, in their order."""
    source = _source(asked, metric)
    keys = list(source.keys.values())
    step = _step(source.at, asked.window)
    query = (
        select(step, *keys, *source.values.values())
        .select_from(source.rows)
        .where(*source.conditions)
        .group_by(step, *keys)
    )
    if keys and of.total > len(of.groups):
        fields = [Group._fields[_KEYS.index(name)] for name in source.keys]
        query = query.where(
            tuple_(*keys).in_([tuple(getattr(each, name) for name in fields) for each in of.groups])
        )
    found: dict[Group, Steps] = {group: {} for group in of.groups}
    async for at, *rest in in_slices(session, query):
        values = dict(zip(source.values, rest[len(keys) :], strict=True))
        if (steps := found.get(source.group(rest[: len(keys)]))) is not None:  # not new since
            steps[asked.window.place(float(at))] = values
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


def _source(asked: Asked, metric: Metric) -> _Source:
    table = service_table(asked.window)
    rows: Any = table.__table__
    conditions = _of(table, asked)
    columns = [getattr(table, name) for name in metric.columns]
    keys: dict[str, ColumnElement[Any]] = {}
    if "tenant" in asked.group_by:
        keys["tenant"] = table.tenant_id.expression
    if "class" in asked.group_by:
        keys["class"] = table.class_.expression
    values: dict[str, ColumnElement[Any]]
    if metric.form == "counts":
        each = func.jsonb_each_text(columns[0]).table_valued("key", "value").lateral()
        rows = rows.join(each, true())
        keys["kind"] = each.c.key
        conditions.append(each.c.key >= metric.names_from)
        values = {COUNT: func.sum(cast(each.c.value, BigInteger))}
        sizes = list(values.values())
    elif metric.form == "quantiles":
        counts = [_counted(columns[0], bucket) for bucket in range(_BUCKETS)]
        values = {metric.columns[0]: array(counts)}
        sizes = [reduce(add, counts)]
    else:
        values = {column.key: func.sum(column) for column in columns}
        sizes = list(values.values())
        if metric.form == "part":
            of, whole = sizes
            sizes = [whole - of, whole]
    return _Source(rows, table.at, keys, conditions, values, sizes)


def _counted(histogram: Any, bucket: int) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(histogram[bucket + 1]), 0), BigInteger)


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
