"""Queries that store usage events, and the records that could not become one. No decisions, no
commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import and_, exists, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import UsageRecord
from tenora_platform.usage.records import claimed_key
from tenora_platform.usage.seal import EVENT_COLUMNS
from tenora_platform.usage.tables import DeadLetterRow, OccupancyEventRow, UsageEventRow

Keys = set[tuple[UUID, int]]
"""Of events: request and sequence."""

_TYPES = {
    "request": "uuid",
    "event_time": "timestamptz",
    "ingested_at": "timestamptz",
    "cold_loads": "smallint",
    "finish_reason": "text",
    "residency": "text",
    "queue_ms": "real",
    "adapter_load_ms": "real",
    "first_token_ms": "real",
    "duration_ms": "real",
    "x_request_id": "text",
    "amount": "numeric",
    "positions": "text",  # each an array, which differ in length
    "seal": "bigint",
}
_COLUMNS = (*EVENT_COLUMNS, "seal")
_ARRAYS = ", ".join(f"CAST(:{name} AS {_TYPES.get(name, 'integer')}[])" for name in _COLUMNS)
_VALUES = ", ".join(
    "CAST(positions AS bigint[])" if name == "positions" else name for name in _COLUMNS
)
_ADD = text(
    f"INSERT INTO usage_events ({', '.join(_COLUMNS)}) "
    f"SELECT {_VALUES} FROM unnest({_ARRAYS}) AS new ({', '.join(_COLUMNS)}) "
    "ON CONFLICT DO NOTHING RETURNING request, sequence"
)
_THERE = text(
    "SELECT request, sequence FROM usage_events JOIN "
    "unnest(CAST(:requests AS uuid[]), CAST(:sequences AS integer[])) AS asked (request, sequence) "
    "USING (request, sequence)"
)


async def stored(session: AsyncSession, keys: Sequence[tuple[UUID, int]]) -> Keys:
    """Those of these events that are there."""
    values = {"requests": [key[0] for key in keys], "sequences": [key[1] for key in keys]}
    return {(request, sequence) for request, sequence in await session.execute(_THERE, values)}


async def add_events(session: AsyncSession, rows: Sequence[Sequence[Any]]) -> Keys:
    """Store what is not stored yet; returns what is new. A row has the values of EVENT_COLUMNS,
    `positions` as a text, and its seal."""
    if not rows:
        return set()
    columns = zip(*sorted(rows, key=lambda row: (row[0], row[1])), strict=True)
    values = dict(zip(_COLUMNS, map(list, columns), strict=True))
    return {(request, sequence) for request, sequence in await session.execute(_ADD, values)}


async def find_event(session: AsyncSession, key: tuple[UUID, int]) -> UsageEventRow | None:
    return await session.get(UsageEventRow, key)


async def without_event(session: AsyncSession, records: Sequence[UsageRecord]) -> list[UsageRecord]:
    """Those of the engine's records that are no event yet."""
    keys = [claimed_key(record) for record in records]
    there = await stored(session, [key for key in keys if key is not None])
    return [record for record, key in zip(records, keys, strict=True) if key not in there]


async def add_dead_letter(session: AsyncSession, values: Mapping[str, object]) -> None:
    await session.execute(insert(DeadLetterRow).values(dict(values)).on_conflict_do_nothing())


_OPEN = and_(
    ~exists().where(
        UsageEventRow.request == DeadLetterRow.request,
        UsageEventRow.sequence == DeadLetterRow.sequence,
    ),
    ~exists().where(
        OccupancyEventRow.id == DeadLetterRow.request, DeadLetterRow.sequence.is_(None)
    ),
)
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
