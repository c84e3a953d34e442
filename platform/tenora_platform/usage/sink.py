"""UsageSink: takes finished sequences' meters from the engine into the database, each exactly once.
Stored and rated in one transaction, committed, and only then acknowledged: a crash at any point
repeats work and loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError, EngineUnavailableError
from tenora_engine.events import Metered, OccupancyRecord, UsageRecord
from tenora_platform.budgets.accounts import Charge
from tenora_platform.db import Database, plain_reason
from tenora_platform.outages import OWN_FAULT
from tenora_platform.usage import repository
from tenora_platform.usage.books import UsageBooks
from tenora_platform.usage.gate import UsageGate, UsageHeldError
from tenora_platform.usage.records import letter_values
from tenora_platform.usage.residency import ResidencyBooks
from tenora_platform.waits.requests import keep_request_waits

Told = Callable[[Sequence[Charge]], Awaitable[None]]
"""Hears what has been stored and rated, after the commit; must not fail."""

RETRY_S = 1.0
_log = structlog.get_logger(__name__)


class UsageSink:
    """One runs in each process that has an engine. `gate` says whether usage may be stored; without
    one it may."""

    def __init__(
        self,
        engine: EngineClient,
        db: Database,
        *,
        told: Told | None = None,
        gate: UsageGate | None = None,
    ) -> None:
        self._engine = engine
        self._db = db
        self._books = UsageBooks(db)
        self._residency = ResidencyBooks(db)
        self._told = told
        self._gate = gate

    async def run(self) -> None:
        """Works for ever; cancel it to stop. Nothing is lost when it is."""
        while True:
            try:
                if not self._engine.ready:
                    await asyncio.sleep(RETRY_S)
                    continue
                await self.run_once()
            except (EngineUnavailableError, UsageHeldError):
                await asyncio.sleep(RETRY_S)  # /readyz and the engine's own log tell of it
            except (SQLAlchemyError, EngineError, OSError) as error:
                _log.warning(
                    "usage records are waiting to be stored",
                    reason=plain_reason(error),
                    retry_s=RETRY_S,
                )
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                # Money must not stop flowing because of one surprise; the records are kept.
                _log.exception(
                    "usage records are waiting to be stored",
                    reason=plain_reason(error),
                    retry_s=RETRY_S,
                )
                await asyncio.sleep(RETRY_S)

    async def run_once(self) -> int:
        """Wait for records, store and acknowledge them; returns how many. Raises UsageHeldError;
        then they stay in the outbox."""
        await self.check_gate()
        records = await self._engine.unacknowledged_usage()
        await self._store_metered(records)
        return len(records)

    async def _store_metered(self, records: Sequence[Metered]) -> None:
        await self.check_gate(records)
        await self.store([record for record in records if isinstance(record, UsageRecord)])
        held = [record for record in records if isinstance(record, OccupancyRecord)]
        if held:
            await self._tell(await self._residency.store(held, self._engine.model.id))
        await self._engine.acknowledge_usage([record.event_id for record in records])

    async def check_gate(self, records: Sequence[Metered] = ()) -> None:
        """Raises UsageHeldError where these must not be stored."""
        if self._gate is not None:
            await self._gate.pass_(records)

    async def store_what_waits(self, idle_s: float = 0.5, most_s: float = 5.0) -> None:
        """Before the process ends: until none has come for `idle_s`. What it does not come to is
        stored by the next."""
        deadline = time.monotonic() + most_s
        while self._engine.ready and time.monotonic() < deadline:
            try:
                await self.check_gate()
                async with asyncio.timeout(idle_s):
                    records = await self._engine.unacknowledged_usage()
                await self._store_metered(records)
            except (TimeoutError, UsageHeldError):
                return
            except (SQLAlchemyError, EngineError, OSError) as error:
                _log.warning(
                    "usage records stay in the outbox until the next start", reason=str(error)
                )
                return

    async def store(self, records: Sequence[UsageRecord]) -> None:
        """Every record is in the database when this returns: as an event or as a dead letter.
        Records that are there already change nothing."""
        try:
            await self._store(records)
        except OWN_FAULT:
            # Something the checks did not foresee. One by one, so that it stops nothing else.
            for record in records:
                await self._store_alone(record)

    async def retry(self, record: Metered) -> bool:
        """Whether a record that was set aside is an event by now."""
        if isinstance(record, OccupancyRecord):
            return await self._retry_occupancy(record)
        try:
            booked = await self._books.store([record])
            await self._tell(booked.charges)
            return not booked.bad
        except OWN_FAULT:
            return False

    async def _retry_occupancy(self, record: OccupancyRecord) -> bool:
        if not self._engine.ready:  # who alone knows of which base model it is
            return False
        charges = await self._residency.retry(record, self._engine.model.id)
        await self._tell(charges or ())
        return charges is not None

    async def _store_alone(self, record: UsageRecord) -> None:
        try:
            await self._store([record])
        except OWN_FAULT as error:
            await self._set_aside([(record, f"it could not be stored: {plain_reason(error)}")])

    async def _store(self, records: Sequence[UsageRecord]) -> None:
        booked = await self._books.store(records)
        await self._set_aside(booked.bad)
        await self._tell(booked.charges)
        await keep_request_waits(self._db, records)

    async def _tell(self, charges: Sequence[Charge]) -> None:
        """Once it is in the books."""
        if self._told is not None and charges:
            await self._told(charges)

    async def _set_aside(self, bad: Sequence[tuple[UsageRecord, str]]) -> None:
        if not bad:
            return
        async with self._db.admin_session() as session:
            for record, reason in bad:
                _log.error(
                    "usage record set aside as a dead letter",
                    event_id=record.event_id,
                    reason=reason,
                )
                await repository.add_dead_letter(session, letter_values(record, reason))
