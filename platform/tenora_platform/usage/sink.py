"""UsageSink: takes finished sequences' meters from the engine into the database, each exactly once.
Stored and rated in one transaction, committed, and only then acknowledged: a crash at any point
repeats work and loses nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.events import UsageRecord
from tenora_platform.billing.rating import Billable
from tenora_platform.billing.service import rate_events, rate_waiting
from tenora_platform.db import Database
from tenora_platform.usage import repository

RETRY_S = 1.0
_log = structlog.get_logger(__name__)


class BadRecordError(Exception):
    """The record cannot become an event; the message says why."""


class UsageSink:
    """One runs in each process that has an engine."""

    def __init__(self, engine: EngineClient, db: Database) -> None:
        self._engine = engine
        self._db = db

    async def run(self) -> None:
        """Works for ever; cancel it to stop. Nothing is lost when it is."""
        waiting_rated = False
        while True:
            try:
                if not waiting_rated:
                    await rate_waiting(self._db)
                    waiting_rated = True
                if not self._engine.ready:
                    await asyncio.sleep(RETRY_S)
                    continue
                await self.run_once()
            except EngineUnavailableError:
                await asyncio.sleep(RETRY_S)  # /readyz and the engine's own log tell of it
            except (SQLAlchemyError, EngineError, OSError) as error:
                _log.warning("usage waits", reason=str(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                # Money must not stop flowing because of one surprise; the records are kept.
                _log.exception("usage waits", reason=str(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def run_once(self) -> int:
        """Wait for records, store and acknowledge them; returns how many."""
        records = await self._engine.unacknowledged_usage()
        await self.store(records)
        await self._engine.acknowledge_usage([record.event_id for record in records])
        return len(records)

    async def store(self, records: Sequence[UsageRecord]) -> None:
        """Every record is in the database when this returns: as an event or as a dead letter.
        Records that are there already change nothing."""
        try:
            async with self._db.admin_session() as session:
                await self._store(session, records)
        except (DataError, IntegrityError):
            # Something the checks did not foresee. One by one, so that it stops nothing else.
            for record in records:
                await self._store_alone(record)

    async def _store_alone(self, record: UsageRecord) -> None:
        try:
            async with self._db.admin_session() as session:
                await self._store(session, [record])
        except (DataError, IntegrityError) as error:
            async with self._db.admin_session() as session:
                await _bury(session, record, f"the database refused it: {error.orig}")

    async def _store(self, session: AsyncSession, records: Sequence[UsageRecord]) -> None:
        tenants = await repository.known_tenants(
            session, [_clean(record.context.get("tenant_id", "")) for record in records]
        )
        events: dict[str, dict[str, Any]] = {}
        for record in records:
            try:
                events[record.event_id] = event_values(record, tenants)
            except BadRecordError as error:
                await _bury(session, record, str(error))
        new = await repository.add_events(session, list(events.values()))
        await rate_events(
            session, [_billable(values) for key, values in events.items() if key in new]
        )


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
    if not 0 <= record.index < 2**31:
        raise BadRecordError(f"its sequence {record.index} is impossible")
    for text in (record.event_id, record.request_id, record.tier, *context.values()):
        if "\0" in text:
            raise BadRecordError("it holds a NUL character")
    return {
        "event_id": record.event_id,
        "tenant_id": context["tenant_id"],
        "request_id": record.request_id,
        "sequence": record.index,
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


def _time(seconds: float) -> datetime:
    if not math.isfinite(seconds) or not 0 <= seconds < 253402300800:  # year 10000
        raise BadRecordError(f"{seconds} is not a time")
    return datetime.fromtimestamp(seconds, UTC)


def _billable(values: dict[str, Any]) -> Billable:
    return Billable(**{name: values[name] for name in Billable.__dataclass_fields__})


def _clean(text: str) -> str:
    """PostgreSQL's texts hold no NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


async def _bury(session: AsyncSession, record: UsageRecord, reason: str) -> None:
    _log.error("usage record refused", event_id=record.event_id, reason=reason)
    # JSON of its own: NaN becomes null, and NUL a visible character.
    kept = msgspec.json.decode(
        msgspec.json.encode(record).replace(b"\\u0000", "\N{REPLACEMENT CHARACTER}".encode())
    )
    await repository.add_dead_letter(session, _clean(record.event_id), kept, _clean(reason))
