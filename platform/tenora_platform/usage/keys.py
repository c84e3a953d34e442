"""Usage events by their keys, as a table to join. With a list of values PostgreSQL would also read
all of the tenant's in an index: it does not know how many they are."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    FromClause,
    Integer,
    TableValuedAlias,
    Uuid,
    and_,
    cast,
    column,
    func,
)

from tenora_platform.usage.tables import UsageEventRow


def requests_table(requests: Sequence[UUID]) -> TableValuedAlias:
    """Join it on `is_of`."""
    values = cast(list(dict.fromkeys(requests)), ARRAY(Uuid))
    return func.unnest(values).table_valued(column("request", Uuid)).render_derived("asked")


def events_table(keys: Sequence[tuple[UUID, int]]) -> TableValuedAlias:
    """Of requests and sequences. Join it on `is_of`."""
    requests = cast([request for request, _ in keys], ARRAY(Uuid))
    sequences = cast([sequence for _, sequence in keys], ARRAY(Integer))
    columns = (column("request", Uuid), column("sequence", Integer))
    return func.unnest(requests, sequences).table_valued(*columns).render_derived("asked")


def is_of(table: FromClause) -> ColumnElement[bool]:
    found = UsageEventRow.request == table.c.request
    if "sequence" not in table.c:
        return found
    return and_(found, UsageEventRow.sequence == table.c.sequence)
