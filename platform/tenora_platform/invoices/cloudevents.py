"""Usage as CloudEvents 1.0, one JSON object a line, as OpenMeter ingests it (`POST /api/v1/events`,
application/cloudevents+json) and, with the same ids, as Lago does (`POST /api/v1/events/batch`). A
metering service takes an event once by its id, so an export may be sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database
from tenora_platform.ids import ulid_text
from tenora_platform.invoices.currency import plain
from tenora_platform.usage.ids import event_text, request_text

Form = Literal["openmeter", "lago"]
EVENT_TYPE = "tenora.usage"
OCCUPANCY_TYPE = "tenora.occupancy"
_BATCH = 250

_SERIES = """
  s.tenant_id, s.kind, s.model, s.adapter_id, s.adapter_digest, s.api_key_id, s.plan,
  s.class, v.id AS price_version, v.currency, e.amount
"""
_JOINS = """
  JOIN usage_series s ON s.id = e.series_id
  LEFT JOIN price_versions v ON v.no = e.price_version_no
"""
_OWN = (
    "(CAST(:tenant AS text) IS NULL OR e.tenant_no = (SELECT no FROM tenants WHERE id = :tenant))"
)
_EVENTS = text(
    f"""
    SELECT e.request AS id, e.sequence, e.event_time AS at, e.prompt_tokens, e.cached_tokens,
           e.output_tokens, e.cold_loads, {_SERIES}
      FROM usage_events e {_JOINS}
     WHERE e.event_time >= :begin AND e.event_time < :end AND {_OWN}
       AND (e.event_time, e.request, e.sequence) > (:at, :id, :sequence)
     ORDER BY e.event_time, e.request, e.sequence LIMIT :limit
    """
)
_OCCUPANCY = text(
    f"""
    SELECT e.id, 0 AS sequence, e.ends AS at, e.meter, e.quantity, {_SERIES}
      FROM occupancy_events e {_JOINS}
     WHERE e.ends >= :begin AND e.ends < :end AND {_OWN}
       AND (e.ends, e.id, 0) > (:at, :id, :sequence)
     ORDER BY e.ends, e.id LIMIT :limit
    """
)
_SERIES_NAMES = ("model", "adapter_id", "adapter_digest", "api_key_id", "plan")


@dataclass(frozen=True, slots=True)
class Export:
    """What ended from `begin` until before `end`, of one tenant or of all. `source` names the
    installation: an id is unique within it."""

    begin: datetime
    end: datetime
    tenant_id: str | None
    source: str
    form: Form


async def lines(db: Database, export: Export) -> AsyncIterator[bytes]:
    """By time, events and then occupancy. Each batch in a session of its own, so that a slow reader
    holds no transaction open."""
    make = {"openmeter": _openmeter, "lago": _lago}[export.form]
    for query, data_of in ((_EVENTS, _tokens), (_OCCUPANCY, _held)):
        place: dict[str, Any] = {"at": export.begin, "id": "0" * 32, "sequence": -1}
        while True:
            async with db.admin_session() as session:
                rows = await _batch(session, query, export, place)
            if not rows:
                break
            yield b"".join(msgspec.json.encode(make(export, row, data_of)) + b"\n" for row in rows)
            place = {name: rows[-1][name] for name in ("at", "id", "sequence")}


async def _batch(
    session: AsyncSession, query: Any, export: Export, place: Mapping[str, Any]
) -> list[Mapping[Any, Any]]:
    values = {
        "begin": export.begin,
        "end": export.end,
        "tenant": export.tenant_id,
        "limit": _BATCH,
        **place,
    }
    return list((await session.execute(query, values)).mappings().all())


_Row = Mapping[Any, Any]
_Data = Callable[[_Row], dict[str, Any]]


def _openmeter(export: Export, row: _Row, data_of: _Data) -> dict[str, Any]:
    """`subject` is the tenant. Numbers that may be long are strings, as OpenMeter takes them."""
    return {
        "specversion": "1.0",
        "type": EVENT_TYPE if data_of is _tokens else OCCUPANCY_TYPE,
        "id": _id(row, data_of),
        "time": row["at"].astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "source": export.source,
        "subject": row["tenant_id"],
        "datacontenttype": "application/json",
        "data": _data(row, data_of),
    }


def _lago(export: Export, row: _Row, data_of: _Data) -> dict[str, Any]:
    """An element of Lago's `events`: the tenant is the subscription, the type the metric's code."""
    kind = EVENT_TYPE if data_of is _tokens else OCCUPANCY_TYPE
    return {
        "transaction_id": _id(row, data_of),
        "external_subscription_id": row["tenant_id"],
        "code": kind.replace(".", "_"),
        "timestamp": f"{row['at'].timestamp():.3f}",
        "properties": _data(row, data_of),
    }


def _id(row: _Row, data_of: _Data) -> str:
    if data_of is _held:
        return f"occ_{ulid_text(row['id'].int)}"
    return event_text(row["kind"], row["id"], row["sequence"])


def _data(row: _Row, data_of: _Data) -> dict[str, Any]:
    rated = row["amount"] is not None
    found = {
        **data_of(row),
        **{name: row[name] for name in _SERIES_NAMES},
        "class": row["class"],
        "price_version": row["price_version"],
        "currency": row["currency"],
        "amount": plain(row["amount"]) if rated else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _tokens(row: _Row) -> dict[str, Any]:
    return {
        "request_id": request_text(row["kind"], row["id"]),
        "sequence": row["sequence"],
        "uncached_prefill": row["prompt_tokens"] - row["cached_tokens"],
        "cached_prefill": row["cached_tokens"],
        "output": row["output_tokens"],
        "cold_load": row["cold_loads"],
    }


def _held(row: _Row) -> dict[str, Any]:
    return {"meter": row["meter"], "quantity": str(row["quantity"])}
