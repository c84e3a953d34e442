"""Moves the events of installations from before migration 0017, which alone calls this: an event
with its rated lines becomes one sealed row. Knows the old tables as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection

from tenora_platform.secret import ServerSecret
from tenora_platform.usage.ids import request_of
from tenora_platform.usage.seal import EVENT_COLUMNS, Seals

_AT_ONCE = 5000
_MS = timedelta(milliseconds=1)
_OLD = """
SELECT e.*, t.no AS tenant_no, v.adapter_id, l.price_version_no, l.amount, u.reason, u.since,
       count(*) OVER (PARTITION BY e.request_id, e.sequence) > 1 AS ambiguous
FROM old_usage_events e
JOIN tenants t ON t.id = e.tenant_id
LEFT JOIN adapter_versions v ON v.id = e.adapter_version_id
LEFT JOIN (
  SELECT line.event_id, min(p.no) AS price_version_no, sum(line.amount) AS amount
  FROM old_rated_lines line JOIN price_versions p ON p.id = line.price_version_id
  GROUP BY line.event_id
) l ON l.event_id = e.event_id
LEFT JOIN old_unrated_events u ON u.event_id = e.event_id
"""
_SERIES = (
    "INSERT INTO usage_series (key, tenant_id, kind, model, class, adapter_id, adapter_version_id, "
    "adapter_digest, api_key_id, plan) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) "
    "RETURNING id"
)
_COLUMNS = tuple(name for name in EVENT_COLUMNS if name != "sequences")
"""As the table is when migration 0017 runs."""
_EVENTS = f"COPY usage_events ({', '.join(_COLUMNS)}, seal) FROM STDIN"
_UNRATED = (
    "INSERT INTO unrated_events (tenant_id, request, sequence, reason, since) "
    "VALUES (%s, %s, %s, %s, %s)"
)


def move_events(connection: Connection, secret: ServerSecret) -> None:
    """Within the migration's transaction."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    mover = _Mover(driver, Seals(secret))
    with driver.cursor("old_events", row_factory=dict_row) as old:
        old.execute(_OLD)
        while rows := old.fetchmany(_AT_ONCE):
            mover.move(rows)


class _Mover:
    def __init__(self, driver: psycopg.Connection[Any], seals: Seals) -> None:
        self._driver = driver
        self._seals = seals
        self._series: dict[tuple[str | None, ...], int] = {}

    def move(self, rows: Sequence[Mapping[str, Any]]) -> None:
        made = [self._event(row) for row in rows]
        with self._driver.cursor() as cursor:
            with cursor.copy(_EVENTS) as copy:
                for values in made:
                    copy.write_row((*values, self._seals.event((*values[:-3], None, *values[-3:]))))
            cursor.executemany(_UNRATED, list(_waiting(rows, made)))

    def _event(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        kind, request = _request(row)
        version, amount = row["price_version_no"], row["amount"]
        if version is None and not row["prompt_tokens"] and not row["output_tokens"]:
            version, amount = 0, Decimal(0)
        first: datetime | None = row["first_token_time"]
        arrival: datetime = row["arrival_time"]
        told = row["x_request_id"]
        return (
            request,
            row["sequence"],
            row["tenant_no"],
            self._series_id(row, kind),
            row["event_time"],
            row["ingested_at"],
            row["prompt_tokens"],
            row["cached_tokens"],
            row["output_tokens"],
            None,
            0,
            row["finish_reason"],
            row["residency"],
            row["queue_ms"],
            row["adapter_load_ms"],
            None if first is None else (first - arrival) / _MS,
            (row["event_time"] - arrival) / _MS,
            0,
            told or "",
            version,
            amount,
            None,
        )

    def _series_id(self, row: Mapping[str, Any], kind: str) -> int:
        values = (
            row["tenant_id"],
            kind,
            row["model"],
            row["tier"],
            row["adapter_id"],
            row["adapter_version_id"],
            row["adapter_digest"],
            row["api_key_id"],
            row["plan"],
        )
        if values not in self._series:
            # As a series says it: neither the model nor the alias asked for, nor the class.
            key = self._seals.series((*values[:4], None, None, *values[4:], None))
            made = self._driver.execute(_SERIES, (key, *values)).fetchone()
            assert made is not None
            self._series[values] = made[0]
        return self._series[values]


def _request(row: Mapping[str, Any]) -> tuple[str, UUID]:
    """Before a request of several prompts counted its sequences, they were all called 0."""
    if row["ambiguous"]:
        return request_of(row["event_id"].rpartition(":")[0])
    return request_of(row["request_id"])


def _waiting(
    rows: Sequence[Mapping[str, Any]], made: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    for row, values in zip(rows, made, strict=True):
        if values[_COLUMNS.index("price_version_no")] is None:
            reason = row["reason"] or "it was stored without a price"
            since = row["since"] or row["ingested_at"]
            yield (row["tenant_id"], values[0], values[1], reason, since)


def move_letters(connection: Connection) -> None:
    """Say of which event each dead letter would be, where its record says it."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    letters = driver.execute("SELECT event_id, record FROM usage_dead_letters").fetchall()
    for event_id, record in letters:
        key = _key_of(record)
        if key is not None:
            driver.execute(
                "UPDATE usage_dead_letters SET request = %s, sequence = %s WHERE event_id = %s",
                (*key, event_id),
            )


def _key_of(record: Any) -> tuple[UUID, int] | None:
    try:
        context, index = record["context"], record["index"]
        sequence = int(context.get("first_sequence", "0")) + index
        request = request_of(context.get("request_id") or record["request_id"])[1]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return (request, sequence) if 0 <= sequence < 2**31 else None
