"""UsageSink: takes finished sequences' meters from the engine into the database, each exactly once.
Stored and rated in one transaction, committed, and only then acknowledged: a crash at any point
repeats work and loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.events import Metered, UsageRecord
from tenora_platform.billing.service import rate_events
from tenora_platform.budgets.accounts import Charge, charges_of
from tenora_platform.db import Database, plain_reason
from tenora_platform.usage import repository
from tenora_platform.usage.records import (
    BadRecordError,
    billable,
    claimed_tenant,
    event_values,
    letter_values,
)

Told = Callable[[Sequence[Charge]], Awaitable[None]]
"""Hears what has been stored and rated, after the commit; must not fail."""

RETRY_S = 1.0
# What can only be about the record at hand. Everything else (a server that is away, a schema that
# is being migrated) is waited for.
_OWN_FAULT = (
    DataError,
    IntegrityError,
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
)
_log = structlog.get_logger(__name__)


class UsageSink:
    """One runs in each process that has an engine."""

    def __init__(self, engine: EngineClient, db: Database, *, told: Told | None = None) -> None:
        self._engine = engine
        self._db = db
        self._told = told

    async def run(self) -> None:
        """Works for ever; cancel it to stop. Nothing is lost when it is."""
        while True:
            try:
                if not self._engine.ready:
                    await asyncio.sleep(RETRY_S)
                    continue
                await self.run_once()
            except EngineUnavailableError:
                await asyncio.sleep(RETRY_S)  # /readyz and the engine's own log tell of it
            except (SQLAlchemyError, EngineError, OSError) as error:
                _log.warning("usage waits", reason=plain_reason(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                # Money must not stop flowing because of one surprise; the records are kept.
                _log.exception("usage waits", reason=plain_reason(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def run_once(self) -> int:
        """Wait for records, store and acknowledge them; returns how many."""
        records = await self._engine.unacknowledged_usage()
        await self._store_metered(records)
        return len(records)

    async def _store_metered(self, records: Sequence[Metered]) -> None:
        await self.store([record for record in records if isinstance(record, UsageRecord)])
        await self._engine.acknowledge_usage([record.event_id for record in records])

    async def store_what_waits(self, idle_s: float = 0.5, most_s: float = 5.0) -> None:
        """Before the process ends: until none has come for `idle_s`. What it does not come to is
        stored by the next."""
        deadline = time.monotonic() + most_s
        while self._engine.ready and time.monotonic() < deadline:
            try:
                async with asyncio.timeout(idle_s):
                    records = await self._engine.unacknowledged_usage()
                await self._store_metered(records)
            except TimeoutError:
                return
            except (SQLAlchemyError, EngineError, OSError) as error:
                _log.warning("usage waits for the next start", reason=str(error))
                return

    async def store(self, records: Sequence[UsageRecord]) -> None:
        """Every record is in the database when this returns: as an event or as a dead letter.
        Records that are there already change nothing."""
        try:
            async with self._db.admin_session() as session:
                charges = await self._store(session, records)
            await self._tell(charges)
        except _OWN_FAULT:
            # Something the checks did not foresee. One by one, so that it stops nothing else.
            for record in records:
                await self._store_alone(record)

    async def retry(self, record: UsageRecord) -> bool:
        """Whether a record that was set aside is an event by now."""
        try:
            async with self._db.admin_session() as session:
                bad, charges = await self._store_good(session, [record])
            await self._tell(charges)
            return not bad
        except _OWN_FAULT:
            return False

    async def _store_alone(self, record: UsageRecord) -> None:
        try:
            async with self._db.admin_session() as session:
                charges = await self._store(session, [record])
            await self._tell(charges)
        except _OWN_FAULT as error:
            async with self._db.admin_session() as session:
                await _set_aside(session, record, f"it could not be stored: {plain_reason(error)}")

    async def _tell(self, charges: Sequence[Charge]) -> None:
        """Once it is in the books."""
        if self._told is not None and charges:
            await self._told(charges)

    async def _store(
        self, session: AsyncSession, records: Sequence[UsageRecord]
    ) -> Sequence[Charge]:
        bad, charges = await self._store_good(session, records)
        for record, reason in bad:
            await _set_aside(session, record, reason)
        return charges

    async def _store_good(
        self, session: AsyncSession, records: Sequence[UsageRecord]
    ) -> tuple[list[tuple[UsageRecord, str]], list[Charge]]:
        """Store and rate what can be an event; returns the others, with the reasons, and what each
        of the new events costs."""
        tenants = await repository.known_tenants(
            session, [claimed_tenant(record) for record in records]
        )
        events: dict[str, dict[str, Any]] = {}
        bad: list[tuple[UsageRecord, str]] = []
        for record in records:
            try:
                events[record.event_id] = event_values(record, tenants)
            except BadRecordError as error:
                bad.append((record, str(error)))
        new = await repository.add_events(session, list(events.values()))
        stored = [billable(values) for key, values in events.items() if key in new]
        ratings = await rate_events(session, stored)
        keys = {event_id: values["api_key_id"] for event_id, values in events.items()}
        return bad, charges_of(ratings, keys)


async def _set_aside(session: AsyncSession, record: UsageRecord, reason: str) -> None:
    _log.error("usage record set aside", event_id=record.event_id, reason=reason)
    await repository.add_dead_letter(session, letter_values(record, reason))
