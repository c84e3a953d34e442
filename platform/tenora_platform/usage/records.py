"""The engine's usage records as rows: events where they can be billed, dead letters where they
cannot. Knows what a possible record is; stores nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from tenora_engine.events import UsageRecord
from tenora_platform.billing.rating import Billable
from tenora_platform.times import EARLIEST, LATEST

_TEXT_MAX = 1000  # of one id or name; longer ones do not fit into an index
_LATEST = LATEST - timedelta(seconds=1)


class BadRecordError(Exception):
    """The record cannot become an event; the message says why."""


def event_values(record: UsageRecord, tenants: set[str]) -> dict[str, Any]:
    """The record as a row of usage_events. Raises BadRecordError."""
    context = record.context
    if context.get("tenant_id") not in tenants:
        raise BadRecordError("it names no tenant that exists")
    if not context.get("model"):
        raise BadRecordError("it names no model")
    counts = (record.prompt_tokens, record.cached_tokens, record.output_tokens)
    if min(counts) < 0 or max(counts) >= 2**62:
        raise BadRecordError(f"its token counts {counts} are impossible")
    if record.cached_tokens > record.prompt_tokens:
        raise BadRecordError("more tokens were cached than the prompt has")
    _check_texts(record)
    return {
        "event_id": record.event_id,
        "tenant_id": context["tenant_id"],
        "request_id": context.get("request_id") or record.request_id,
        "x_request_id": context.get("x_request_id") or None,
        "sequence": _sequence(record),
        "api_key_id": context.get("api_key_id") or None,
        "model": context["model"],
        "plan": context.get("plan") or None,
        "adapter_version_id": context.get("adapter_version_id") or None,
        "adapter_digest": record.adapter_digest,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_tokens": record.output_tokens,
        "tier": record.tier,
        "finish_reason": record.finish_reason,
        "residency": record.residency,
        "queue_ms": record.queue_ms,
        "adapter_load_ms": record.adapter_load_ms,
        "arrival_time": _time(record.arrival_s),
        "first_token_time": (None if record.first_token_s is None else _time(record.first_token_s)),
        "event_time": _time(record.finished_s),
    }


def _sequence(record: UsageRecord) -> int:
    """Its place among all sequences of what the client sent: each of several prompts is a request
    of its own to the engine."""
    first = record.context.get("first_sequence", "0")
    if not (first.isascii() and first.isdigit() and len(first) < 10) or record.index < 0:
        raise BadRecordError(f"its sequence {first[:20]!r} and {record.index} is impossible")
    sequence = int(first) + record.index
    if sequence >= 2**31:
        raise BadRecordError(f"its sequence {sequence} is impossible")
    return sequence


def _check_texts(record: UsageRecord) -> None:
    if not all(isinstance(text, str) for text in record.context.values()):
        raise BadRecordError("its context holds something else than texts")
    values = (*msgspec.structs.asdict(record).values(), *record.context.values())
    for text in values:
        if not isinstance(text, str):
            continue
        if "\0" in text:
            raise BadRecordError("it holds a NUL character")
        if not text.isprintable() and _clean(text) != text:
            raise BadRecordError("it holds half of a surrogate pair")
        if len(text) > _TEXT_MAX:
            raise BadRecordError(f"one of its texts has {len(text)} characters")


def _time(seconds: float) -> datetime:
    if not math.isfinite(seconds):
        raise BadRecordError(f"{seconds} is not a time")
    if not EARLIEST.timestamp() <= seconds <= _LATEST.timestamp():
        raise BadRecordError(f"{seconds} is not a time from {EARLIEST.year} until {LATEST.year}")
    return datetime.fromtimestamp(seconds, UTC)


def billable(values: Mapping[str, Any]) -> Billable:
    return Billable(
        event_id=values["event_id"],
        tenant_id=values["tenant_id"],
        model=values["model"],
        plan=values["plan"],
        event_time=values["event_time"],
        prompt_tokens=values["prompt_tokens"],
        cached_tokens=values["cached_tokens"],
        output_tokens=values["output_tokens"],
        class_=values["tier"],
        adapter_id=None,
        cold_loads=0,
    )


def claimed_tenant(record: UsageRecord) -> str:
    """The tenant that the record names, as PostgreSQL can be asked for it."""
    return _clean(record.context.get("tenant_id", ""))


def letter_values(record: UsageRecord, reason: str) -> dict[str, Any]:
    """The record as a row of usage_dead_letters, whatever it holds: readable JSON, and the very
    bytes of it, from which `record_of` makes it again."""
    raw: bytes | None
    try:
        raw = msgspec.msgpack.encode(record)
        # JSON of its own: NaN becomes null, and NUL a visible character.
        text = msgspec.json.encode(record).replace(b"\\u0000", "\N{REPLACEMENT CHARACTER}".encode())
        shown = msgspec.json.decode(text)
    except (ValueError, OverflowError, TypeError):
        raw, shown = None, {"event_id": _clean(record.event_id), "repr": _clean(repr(record))}
    event_id = _clean(record.event_id)
    if len(event_id) > _TEXT_MAX:
        event_id = f"sha256:{sha256(event_id.encode()).hexdigest()}"
    return {"event_id": event_id, "record": shown, "raw": raw, "reason": _clean(reason)}


def record_of(raw: bytes) -> UsageRecord:
    """The record of a dead letter. Raises msgspec.MsgspecError if it is none (any more)."""
    return msgspec.msgpack.decode(raw, type=UsageRecord)


def _clean(text: str) -> str:
    """PostgreSQL's texts hold neither NUL nor halves of surrogate pairs."""
    whole = text.encode("utf-8", errors="replace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")
