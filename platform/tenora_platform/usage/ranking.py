"""Which groups of a window are the greatest. The database ranks them, and adds all others up: what
comes from it does not grow with the number of groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import reduce
from itertools import chain
from operator import add
from typing import Any

from sqlalchemy import ColumnElement, Select, String, func, select, union, union_all
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.usage.reading import (
    OTHERS,
    Keys,
    Part,
    Summed,
    Window,
    as_table,
    key_columns,
    parts,
)
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tally import Shape, Tally

_TOKENS = ("cached_prefill", "uncached_prefill", "output")


async def greatest(
    session: AsyncSession, window: Window, shape: Shape, edges: Sequence[Summed]
) -> tuple[list[Keys] | None, int | None]:
    """The `shape.top` greatest groups with something to show, and how many others there are; None
    twice where there are no others. `edges`: what `of_edges` found."""
    if shape.top is None or not window.groups:
        return None, None
    of_window = union_all(
        *(_weighed(window, shape, part) for part in parts(window)),
        _edges_weighed(window, shape, edges),
    ).subquery()
    keys = [of_window.c[name] for name in key_columns(window)]
    query = (
        select(*keys, func.count().over())
        .group_by(*keys)
        .having(func.sum(of_window.c.shown) > 0)
        .order_by(func.sum(of_window.c.weight).desc(), *chain.from_iterable(map(_in_order, keys)))
        .limit(shape.top)
    )
    rows = (await session.execute(query)).all()
    others = rows[0][-1] - len(rows) if rows else 0
    if not others:
        return None, None
    return [tuple(zip(key_columns(window), row[:-1], strict=True)) for row in rows], others


async def group_counts(
    session: AsyncSession, window: Window, edges: Sequence[Summed]
) -> Counter[datetime]:
    """How many groups each bucket has."""
    found = Counter(bucket for bucket, _ in {(each.bucket, each.group) for each in edges})
    keys = key_columns(window).values()
    bucket = "bucket"
    rows = [part.rows(window, part.begin.label(bucket), *keys) for part in parts(window)]
    if rows:
        of_window = union(*rows).subquery()
        of_bucket = of_window.c[bucket]
        query = select(of_bucket, func.count()).group_by(of_bucket)
        for begin, count in await session.execute(query):
            found[begin.astimezone(UTC)] += count
    return found


async def widest(session: AsyncSession, window: Window) -> str | None:
    """What the window is grouped by that has the most values."""
    keys = key_columns(window)
    rows = [
        part.rows(window, *(each.label(name) for name, each in keys.items()))
        for part in parts(window)
    ]
    if not rows:
        return None
    of_window = union(*rows).subquery()
    query = select(*(func.count(of_window.c[name].distinct()) for name in keys))
    counts = (await session.execute(query)).one()
    return max(zip(counts, keys, strict=True))[1]


def merged(sums: Iterable[Summed], kept: Sequence[Keys] | None) -> list[Summed]:
    """With all groups but the kept ones as `OTHERS`; None: all are kept."""
    if kept is None:
        return list(sums)
    names = frozenset(kept)
    return [each if each.group in names else replace(each, group=OTHERS) for each in sums]


def _weighed(window: Window, shape: Shape, part: Part) -> Select[Any]:
    """Rows of keys, `shown` (above 0 if there is something to show) and `weight`."""
    amount = reduce(add, [getattr(part.row, column) for column in AMOUNTS.values()])
    weights = {
        "cost": amount,  # of several currencies by their numbers, as `Tally.weight`
        "requests": part.row.requests,
        "tokens": reduce(add, [getattr(part.row, meter) for meter in _TOKENS]),
    }
    shown = part.row.sequences + amount if shape.costs else part.row.sequences
    keys = [each.label(name) for name, each in key_columns(window).items()]
    return part.rows(window, *keys, shown.label("shown"), weights[shape.top_by].label("weight"))


def _edges_weighed(window: Window, shape: Shape, edges: Sequence[Summed]) -> Select[Any]:
    """The same of what is in no table of sums."""
    groups: defaultdict[Keys, Tally] = defaultdict(Tally)
    for each in edges:
        groups[each.group].add(each)
    shown = [Decimal(each.counts["sequences"]) for each in groups.values()]
    if shape.costs:
        shown = list(map(add, shown, (each.weight("cost") for each in groups.values())))
    weights = [each.weight(shape.top_by) for each in groups.values()]
    table = as_table(window, list(groups), shown=shown, weight=weights)
    return select(*(table.c[name] for name in (*key_columns(window), "shown", "weight")))


def _in_order(key: ColumnElement[Any]) -> Iterable[ColumnElement[Any]]:
    """By value, text by its code points; what has none last."""
    return key.is_(None), (key.collate("C") if isinstance(key.type, String) else key)
