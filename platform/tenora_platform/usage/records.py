"""The engine's usage records as rows: events where they can be billed, dead letters where they
cannot. Knows what a possible record is; stores nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast
from uuid import UUID

import msgspec

from tenora_engine.events import OccupancyRecord, UsageRecord
from tenora_platform.billing.price_lists import Meter
from tenora_platform.billing.rating import Billable
from tenora_platform.ids import split_id
from tenora_platform.times import EARLIEST, LATEST
from tenora_platform.usage.ids import (
    BadSequenceError,
    EventId,
    event_of_run,
    event_text,
    occupancy_text,
    stored_x_request_id,
)
from tenora_platform.usage.series import Series
from tenora_platform.usage.tables import OccupancyEventRow, UsageEventRow, UsageSeriesRow

_TEXT_MAX = 1000  # of one id or name; longer ones do not fit into an index
_LATEST = LATEST - timedelta(seconds=1)
_COUNT_END = 2**31
_PREEMPTIONS_MAX = 2**15 - 1  # that a seal holds; nobody is charged by it
_MS = timedelta(milliseconds=1)
_MS_MAX = 1e13  # three hundred years
NO_TENANT = "it names no tenant that exists"


class BadRecordError(Exception):
    """The record cannot become an event; the message says why."""


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """A record as it will be stored; what repeats is in `series`. Times in ms from arrival."""

    id: EventId
    series: Series
    event_time: datetime
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int | None
    cold_loads: int
    finish_reason: str
    residency: str | None
    queue_ms: float
    adapter_load_ms: float
    first_token_ms: float | None
    duration_ms: float
    preemptions: int
    x_request_id: str | None
    sequences: int | None  # of its request; None: this one alone


def usage_event(record: UsageRecord) -> UsageEvent:
    """Raises BadRecordError. Whether its tenant exists is not asked."""
    context = record.context
    _check_names(context)
    counts = (record.prompt_tokens, record.cached_tokens, record.output_tokens)
    if min(counts) < 0 or max(counts) >= _COUNT_END:
        raise BadRecordError(f"its token counts {counts} are not possible")
    if record.cached_tokens > record.prompt_tokens:
        raise BadRecordError("more tokens were cached than the prompt has")
    _check_texts(record)
    try:
        event_id = event_of_run(record.request_id, context, record.index)
    except BadSequenceError as error:
        raise BadRecordError(f"its sequence {error} is not possible") from error
    arrival, finished = _time(record.arrival_s), _time(record.finished_s)
    first = None if record.first_token_s is None else _time(record.first_token_s)
    return UsageEvent(
        id=event_id,
        series=_series(record, event_id.kind),
        event_time=finished,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        max_tokens=_small(context.get("max_tokens")),
        cold_loads=int(record.cold_load),
        finish_reason=record.finish_reason,
        residency=record.residency,
        queue_ms=_ms(record.queue_ms),
        adapter_load_ms=_ms(record.adapter_load_ms),
        first_token_ms=None if first is None else _ms((first - arrival) / _MS),
        duration_ms=_ms((finished - arrival) / _MS),
        preemptions=min(record.preemptions, _PREEMPTIONS_MAX),
        x_request_id=stored_x_request_id(event_id.request, context.get("x_request_id")),
        sequences=_several(context.get("sequences")),
    )


def _series(record: UsageRecord, kind: str) -> Series:
    context = record.context
    return Series(
        tenant_id=context["tenant_id"],
        kind=kind,
        model=context["model"],
        class_=record.tier,
        asked_model=context.get("asked_model") or None,
        alias=context.get("alias") or None,
        adapter_id=context.get("adapter_id") or None,
        adapter_version_id=context.get("adapter_version_id") or None,
        adapter_digest=record.adapter_digest,
        api_key_id=context.get("api_key_id") or None,
        plan=context.get("plan") or None,
        asked_class=context.get("asked_tier") or None,
    )


def _check_names(context: Mapping[str, str]) -> None:
    tenant_id: object = context.get("tenant_id")
    if not isinstance(tenant_id, str) or not tenant_id or _clean(tenant_id) != tenant_id:
        raise BadRecordError(NO_TENANT)
    if not context.get("model"):
        raise BadRecordError("it names no model")


def _check_texts(record: UsageRecord) -> None:
    if not all(isinstance(text, str) for text in record.context.values()):
        raise BadRecordError("its context contains something other than strings")
    values = (*msgspec.structs.asdict(record).values(), *record.context.values())
    for text in values:
        if not isinstance(text, str):
            continue
        if "\0" in text:
            raise BadRecordError("it contains a NUL character")
        if not text.isprintable() and _clean(text) != text:
            raise BadRecordError("it contains a lone surrogate")
        if len(text) > _TEXT_MAX:
            raise BadRecordError(f"one of its texts has {len(text)} characters")


def _time(seconds: float) -> datetime:
    if not math.isfinite(seconds):
        raise BadRecordError(f"{seconds} is not a time")
    if not EARLIEST.timestamp() <= seconds <= _LATEST.timestamp():
        raise BadRecordError(f"{seconds} is not a time from {EARLIEST.year} until {LATEST.year}")
    return datetime.fromtimestamp(seconds, UTC)


def _ms(value: float) -> float:
    if not math.isfinite(value) or abs(value) > _MS_MAX:
        raise BadRecordError(f"{value} is not a time in ms")
    return float(value)


def _small(text: str | None) -> int | None:
    """A number that the API wrote into the context; nothing where it did not."""
    if not text or not text.isdecimal() or len(text) > 10:
        return None
    return min(int(text), _COUNT_END - 1)


def _several(text: str | None) -> int | None:
    number = _small(text)
    return number if number is not None and number > 1 else None


def billable(event: UsageEvent) -> Billable:
    return Billable(
        event_id=event.id.text,
        tenant_id=event.series.tenant_id,
        model=event.series.model,
        plan=event.series.plan,
        event_time=event.event_time,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        output_tokens=event.output_tokens,
        cold_loads=event.cold_loads,
        class_=event.series.class_,
        adapter_id=event.series.adapter_id,
    )


def stored_billable(row: UsageEventRow, series: UsageSeriesRow) -> Billable:
    """The same of an event that is stored."""
    return Billable(
        event_id=event_text(series.kind, row.request, row.sequence),
        tenant_id=series.tenant_id,
        model=series.model,
        plan=series.plan,
        event_time=row.event_time,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        cold_loads=row.cold_loads,
        class_=series.class_,
        adapter_id=series.adapter_id,
    )


def held_billable(row: OccupancyEventRow, series: UsageSeriesRow) -> Billable:
    """The same of occupancy."""
    return Billable(
        event_id=occupancy_text(row.id),
        tenant_id=series.tenant_id,
        adapter_id=series.adapter_id,
        model=series.model,
        plan=series.plan,
        class_=series.class_,
        event_time=row.ends,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        cold_loads=0,
        occupancy=(cast("Meter", row.meter), row.quantity),
    )


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
    request, sequence = claimed_key(record) or (None, None)
    return {
        "event_id": event_id,
        "request": request,
        "sequence": sequence,
        "record": shown,
        "raw": raw,
        "reason": _clean(reason),
    }


def claimed_key(record: UsageRecord) -> tuple[UUID, int] | None:
    """Request and sequence of the event that it would be; None of one that contradicts itself."""
    if record.event_id != f"{record.request_id}:{record.index}":
        return None
    try:
        return event_of_run(record.request_id, record.context, record.index).key
    except (ValueError, TypeError, AttributeError):
        return None


def record_of(raw: bytes) -> UsageRecord:
    """The record of a dead letter. Raises msgspec.MsgspecError if it is none (any more)."""
    return msgspec.msgpack.decode(raw, type=UsageRecord)


def occupancy_letter_values(record: OccupancyRecord, reason: str) -> dict[str, Any]:
    """The same as `letter_values` of a record of occupancy; `request` is the id that its event
    would have, without a sequence."""
    named = split_id(record.event_id)
    return {
        "event_id": record.event_id,
        "request": None if named is None else UUID(int=named[1]),
        "sequence": None,
        "record": msgspec.to_builtins(record),
        "raw": msgspec.msgpack.encode(record),
        "reason": reason,
    }


def occupancy_record_of(raw: bytes) -> OccupancyRecord:
    """Likewise. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(raw, type=OccupancyRecord)


def _clean(text: str) -> str:
    """PostgreSQL's texts hold neither NUL nor halves of surrogate pairs."""
    whole = text.encode("utf-8", errors="replace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")
