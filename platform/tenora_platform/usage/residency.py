"""The engine's occupancy records as occupancy of the books: by the tenant's adapter of that digest.
What cannot be booked is set aside whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import structlog
from sqlalchemy import select, tuple_
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import OccupancyRecord
from tenora_platform.billing.price_lists import Meter
from tenora_platform.budgets.accounts import Charge
from tenora_platform.db import Database, plain_reason
from tenora_platform.ids import split_id
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.tenants.plan_history import PlanHistory, plan_histories
from tenora_platform.usage import repository
from tenora_platform.usage.occupancy import Occupancy, OccupancyBooks
from tenora_platform.usage.records import occupancy_letter_values
from tenora_platform.usage.series import Series

_MOMENT = timedelta(microseconds=1)
_OWN_FAULT = (DataError, IntegrityError, ValueError, LookupError, ArithmeticError)
_log = structlog.get_logger(__name__)


class _Known(NamedTuple):
    plans: dict[str, PlanHistory]  # by tenant
    versions: dict[tuple[str, str], AdapterVersionRow]  # by tenant and digest, the newest


class ResidencyBooks:
    """`model` is the base model's id, which the engine's records do not say."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._books = OccupancyBooks(db)

    async def store(self, records: Sequence[OccupancyRecord], model: str) -> list[Charge]:
        """Every record is in the database when this returns, as an event or as a dead letter;
        those that are there already change nothing. Returns what the new ones cost."""
        async with self._db.admin_session() as session:
            known = await _known(session, records)
        found: list[Occupancy] = []
        for record in records:
            try:
                found.append(_occupancy(record, known, model))
            except _OWN_FAULT as error:
                await self._set_aside(record, str(error))
        try:
            return await self._books.store(found)
        except _OWN_FAULT:
            # One by one, so that it stops nothing else.
            return await self._store_alone(records, known, model)

    async def retry(self, record: OccupancyRecord, model: str) -> list[Charge] | None:
        """What a record that was set aside costs, if it is new in the books; None if it still
        cannot be booked."""
        async with self._db.admin_session() as session:
            known = await _known(session, [record])
        try:
            return await self._books.store([_occupancy(record, known, model)])
        except _OWN_FAULT:
            return None

    async def _store_alone(
        self, records: Sequence[OccupancyRecord], known: _Known, model: str
    ) -> list[Charge]:
        charges: list[Charge] = []
        for record in records:
            try:
                charges += await self._books.store([_occupancy(record, known, model)])
            except _OWN_FAULT as error:
                await self._set_aside(record, f"it could not be stored: {plain_reason(error)}")
        return charges

    async def _set_aside(self, record: OccupancyRecord, reason: str) -> None:
        _log.error(
            "occupancy record set aside as a dead letter", event_id=record.event_id, reason=reason
        )
        async with self._db.admin_session() as session:
            await repository.add_dead_letter(session, occupancy_letter_values(record, reason))


async def _known(session: AsyncSession, records: Sequence[OccupancyRecord]) -> _Known:
    tenants = {record.tenant for record in records}
    plans = await plan_histories(session, tenants)
    pairs = {(record.tenant, record.adapter_digest) for record in records}
    rows = await session.scalars(
        select(AdapterVersionRow)
        .where(tuple_(AdapterVersionRow.tenant_id, AdapterVersionRow.digest).in_(pairs))
        .order_by(AdapterVersionRow.created_at)
    )
    return _Known(plans, {(row.tenant_id, row.digest or ""): row for row in rows})


def _occupancy(record: OccupancyRecord, known: _Known, model: str) -> Occupancy:
    """Raises ValueError with the reason."""
    named = split_id(record.event_id)
    if named is None:
        raise ValueError("its id is not an id of Tenora's")
    if record.tenant not in known.plans:
        raise ValueError("it names no tenant that exists")
    if not 0 < record.kb_s < 2**62:
        raise ValueError(f"{record.kb_s} kB-seconds are not possible")
    begins = datetime.fromtimestamp(record.begins_s, UTC)
    ends = datetime.fromtimestamp(record.ends_s, UTC)
    last = max(ends - _MOMENT, begins)  # what ends at midnight is of the day before
    version = known.versions.get((record.tenant, record.adapter_digest))
    series = Series(
        tenant_id=record.tenant,
        kind="residency",
        model=model,
        class_="",
        adapter_id=None if version is None else version.adapter_id,
        adapter_version_id=None if version is None else version.id,
        adapter_digest=record.adapter_digest,
        plan=known.plans[record.tenant].at(last),
    )
    meter: Meter = "device_residency" if record.tier == "device" else "host_residency"
    return Occupancy(
        id=UUID(int=named[1]),
        series=series,
        meter=meter,
        quantity=record.kb_s,
        begins=begins,
        ends=last,
    )
