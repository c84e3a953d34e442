"""Pages over rows that are sorted by something else than when they were made. It knows queries and
no tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    SQLColumnExpression,
    literal,
    or_,
    tuple_,
)

Rows = Select[*tuple[Any, ...]]

Asked = Annotated[
    str | None,
    Query(alias="q", min_length=1, max_length=200, description="Only items that contain this text"),
]
"""A search: what is typed into a list's field, in any case."""


@dataclass(frozen=True)
class Order:
    """By `key`, and equal ones by `id`, so that no two rows share a place. `key_of_after`: the key
    of the row after which the page begins, as a subquery."""

    key: SQLColumnExpression[Any]
    id: SQLColumnExpression[str]
    descending: bool
    key_of_after: ScalarSelect[Any]


def split(sort: str) -> tuple[str, bool]:
    """`-name` is (name, descending)."""
    return sort.removeprefix("-"), sort.startswith("-")


def page(query: Rows, order: Order, *, after: str | None, limit: int | None) -> Rows:
    """The rows behind the one with the id `after`; one more than `limit` (None: all). After a row
    that is not there, none."""
    keys = (order.key, order.id)
    if after is not None:
        place = tuple_(order.key_of_after, literal(after))
        query = query.where(
            tuple_(*keys) < place if order.descending else tuple_(*keys) > place,
        )
    sides = [each.desc() if order.descending else each.asc() for each in keys]
    return query.order_by(*sides).limit(None if limit is None else limit + 1)


def having(asked: str | None, *columns: SQLColumnExpression[Any]) -> list[ColumnElement[bool]]:
    """The condition that one of them holds what was asked for, as it is written: `%` is a sign like
    any other."""
    if asked is None:
        return []
    return [or_(*(column.icontains(asked, autoescape=True) for column in columns))]
