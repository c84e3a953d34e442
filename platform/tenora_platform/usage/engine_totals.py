"""What engines say they have metered in all, by tenant and UTC day, kept so that the books can be
compared with it: also of an engine that is no more, as it last said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_engine.events import EngineTotals, TenantDay, UsageRecord
from tenora_engine.transport.totals import Totals
from tenora_platform.db import Database, plain_reason
from tenora_platform.usage.gate import UsageGate, UsageHeldError
from tenora_platform.usage.tables import EngineOutboxRow, EngineTotalRow

COPIES = "copies"
"""Stands for the engines whose records came from the API's copies alone. At least those that the
engines' own totals may lack: what an engine has told of meanwhile is counted by it as well."""

EVERY_S = 60.0
_ROWS_AT_ONCE = 2000
_COUNTS = ("sequences", "prompt_tokens", "cached_tokens", "output_tokens", "cold_loads")
_log = structlog.get_logger(__name__)


class TotalsKeeper:
    """Of a worker; several do no harm to each other, for totals only rise."""

    def __init__(
        self, engine: EngineClient, db: Database, *, gate: UsageGate | None = None
    ) -> None:
        self._engine = engine
        self._db = db
        self._gate = gate
        self._known = False  # all days, and from then on the last two

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            try:
                if self._engine.ready:
                    await self.run_once()
            except UsageHeldError:
                pass  # an engine's totals are of its own database
            except (EngineError, SQLAlchemyError, OSError) as error:
                _log.warning(
                    "the engine's usage totals could not be stored", reason=plain_reason(error)
                )
            await asyncio.sleep(EVERY_S)

    async def run_once(self) -> EngineTotals:
        """Ask the engine, and keep what it says. Raises UsageHeldError."""
        if self._gate is not None:
            await self._gate.pass_()
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        totals = await self._engine.usage_totals(yesterday.isoformat() if self._known else "")
        if self._gate is not None:
            self._gate.tell_unreadable(totals.unreadable)
        async with self._db.admin_session() as session:
            await keep(session, totals)
        self._known = True
        return totals


async def keep(session: AsyncSession, totals: EngineTotals) -> None:
    """An older answer of the same engine takes nothing back."""
    await _hear(session, totals.engine, date.fromisoformat(totals.whole_since))
    rows = [_values(totals.engine, day) for day in totals.days]
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        new = insert(EngineTotalRow).values(rows[first : first + _ROWS_AT_ONCE])
        await session.execute(
            new.on_conflict_do_update(
                index_elements=("engine", "tenant_id", "day"),
                set_={name: new.excluded[name] for name in _COUNTS} | {"updated_at": func.now()},
                where=EngineTotalRow.sequences < new.excluded["sequences"],
            )
        )


async def add_recovered(session: AsyncSession, records: Sequence[UsageRecord]) -> None:
    """These are about to be stored from the API's copies."""
    counted = Totals(None)
    counted.add(0, records)
    await _hear(session, COPIES, datetime.now(UTC).date())
    for day in counted.view("", []).days:
        new = insert(EngineTotalRow).values(_values(COPIES, day))
        sums = {name: getattr(EngineTotalRow, name) + new.excluded[name] for name in _COUNTS}
        await session.execute(
            new.on_conflict_do_update(
                index_elements=("engine", "tenant_id", "day"),
                set_=sums | {"updated_at": func.now()},
            )
        )


async def _hear(session: AsyncSession, engine: str, whole_since: date) -> None:
    new = insert(EngineOutboxRow).values(engine=engine, whole_since=whole_since)
    await session.execute(
        new.on_conflict_do_update(index_elements=("engine",), set_={"last_heard_at": func.now()})
    )


def _values(engine: str, day: TenantDay) -> dict[str, Any]:
    counts = {name: getattr(day, name) for name in _COUNTS}
    return {
        "engine": engine,
        "tenant_id": day.tenant,
        "day": date.fromisoformat(day.day),
        **counts,
    }
