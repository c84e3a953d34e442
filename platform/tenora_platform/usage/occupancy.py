"""The books of occupancy: what an adapter took of memory or of the object store over a time becomes
an event, rated and counted in the sums in one transaction, exactly once. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import Meter
from tenora_platform.billing.rating import Billable, Rating
from tenora_platform.billing.service import rate_events
from tenora_platform.billing.waiting import NO_SEQUENCE, note_late
from tenora_platform.budgets.accounts import Charge, charge_for
from tenora_platform.db import Database
from tenora_platform.usage.booking import begin_booking
from tenora_platform.usage.books import OvertakenError
from tenora_platform.usage.seal import OCCUPANCY_COLUMNS, Seals
from tenora_platform.usage.series import Place, Series, SeriesBook
from tenora_platform.usage.sums import Sums
from tenora_platform.usage.tables import OccupancyEventRow, UnratedEventRow, UsageSeriesRow

_ATTEMPTS = 5
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Occupancy:
    """So much of one meter in a time that lies in one day (UTC). `id` is the same whenever the same
    is stored again."""

    id: UUID
    series: Series
    meter: Meter
    quantity: int  # kB*s of residency, kB*h of storage; above 0
    begins: datetime
    ends: datetime  # the last moment that belongs to it

    @property
    def billable(self) -> Billable:
        return _billable(self.id, self.series, self.meter, self.quantity, self.ends)


class OccupancyBooks:
    """One for each process that stores occupancy."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._series = SeriesBook(db)
        self._seals = Seals(db.secret)

    async def store(self, found: Sequence[Occupancy]) -> list[Charge]:
        """Store what is no event yet; of tenants that do not exist, nothing. Returns what the new
        ones cost, as far as they have a price. Raises what the database raises; then nothing has
        been stored."""
        places = await self._series.places(each.series for each in found)
        placed = {each.id: (each, places[each.series]) for each in found if each.series in places}
        for attempt in range(_ATTEMPTS):
            try:
                async with self._db.admin_session() as session:
                    query = select(OccupancyEventRow.id).where(OccupancyEventRow.id.in_(placed))
                    there = set(await session.scalars(query))
                    new = [placed[each] for each in sorted(placed.keys() - there)]
                    return await self._write(session, new)
            except OvertakenError:
                if attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError

    async def _write(
        self, session: AsyncSession, new: Sequence[tuple[Occupancy, Place]]
    ) -> list[Charge]:
        if not new:
            return []
        now = await begin_booking(session, {each.series.tenant_id for each, _ in new})
        rated = await rate_events(session, [each.billable for each, _ in new])
        rows: list[dict[str, Any]] = []
        unrated: list[dict[str, Any]] = []
        sums, charges = Sums(), []
        for each, place in new:
            event = each.billable
            rating = rated.ratings.get(event.event_id)
            rows.append(self._row(each, place, rating, now))
            sums.add(event, place.series_id, rating, None)
            if rating is not None:
                charges.append(charge_for(rating, ()))
            else:
                reason = rated.reasons[event.event_id]
                mark = {"tenant_id": event.tenant_id, "occupancy_id": each.id, "reason": reason}
                unrated.append(mark)
        statement = insert(OccupancyEventRow).values(rows).on_conflict_do_nothing()
        stored = await session.scalars(statement.returning(OccupancyEventRow.id))
        if len(stored.all()) != len(rows):
            raise OvertakenError
        if unrated:
            await session.execute(insert(UnratedEventRow).values(unrated))
        await sums.write(session)
        return charges

    def _row(
        self, each: Occupancy, place: Place, rating: Rating | None, now: datetime
    ) -> dict[str, Any]:
        values = (each.id, *place, each.meter, each.quantity, each.begins, each.ends, now)
        return _sealed(self._seals, (*values, *_price(rating)))


async def rate_waiting_occupancy(db: Database) -> int:
    """Rate all occupancy that waits for a price and has one by now; returns how many. Small
    transactions: it may be ended at any point and run again."""
    seals, after, rated = Seals(db.secret), 0, 0
    while True:
        async with db.admin_session() as session:
            now = await begin_booking(session)
            query = (
                select(UnratedEventRow, OccupancyEventRow, UsageSeriesRow)
                .join(OccupancyEventRow, OccupancyEventRow.id == UnratedEventRow.occupancy_id)
                .join(UsageSeriesRow, UsageSeriesRow.id == OccupancyEventRow.series_id)
                .where(UnratedEventRow.no > after)
                .order_by(UnratedEventRow.no)
                .limit(_BATCH)
                .with_for_update(of=UnratedEventRow, key_share=True, skip_locked=True)
            )
            found = [(mark, row, series) for mark, row, series in await session.execute(query)]
            if not found:
                return rated
            after = found[-1][0].no
            rated += await _rate_again(session, seals, found, now)


async def _rate_again(
    session: AsyncSession,
    seals: Seals,
    found: Sequence[tuple[UnratedEventRow, OccupancyEventRow, UsageSeriesRow]],
    now: datetime,
) -> int:
    """What has been changed by hand is not sealed anew: the reconciliation names it."""
    whole = [each for each in found if seals.occupancy(_values(each[1])) == each[1].seal]
    events = [
        _billable(row.id, series, row.meter, row.quantity, row.ends) for _, row, series in whole
    ]
    ratings = (await rate_events(session, events)).ratings
    done, sums = 0, Sums()
    for (mark, row, _), event in zip(whole, events, strict=True):
        rating = ratings.get(event.event_id)
        if rating is None:
            continue
        done += 1
        sums.take(event, row.series_id, None, None)
        sums.add(event, row.series_id, rating, None)
        new = _sealed(seals, (*_values(row)[:-3], *_price(rating)))
        price = {name: new[name] for name in ("price_version_no", "amount", "positions", "seal")}
        await session.execute(
            update(OccupancyEventRow).where(OccupancyEventRow.id == row.id).values(**price)
        )
        await note_late(session, [(event.tenant_id, row.id, NO_SEQUENCE)], now)
        await session.execute(delete(UnratedEventRow).where(UnratedEventRow.no == mark.no))
    await sums.write(session)
    return done


def _billable(
    id_: UUID, series: Series | UsageSeriesRow, meter: Any, quantity: int, ends: datetime
) -> Billable:
    return Billable(
        event_id=f"occupancy:{id_}",
        tenant_id=series.tenant_id,
        adapter_id=series.adapter_id,
        model=series.model,
        plan=series.plan,
        class_=series.class_,
        event_time=ends,
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        cold_loads=0,
        occupancy=(meter, quantity),
    )


def _price(rating: Rating | None) -> tuple[Any, Any, Any]:
    if rating is None:
        return None, None, None
    return rating.price_version_no, rating.amount, rating.positions


def _values(row: OccupancyEventRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in OCCUPANCY_COLUMNS)


def _sealed(seals: Seals, values: Sequence[Any]) -> dict[str, Any]:
    named = dict(zip(OCCUPANCY_COLUMNS, values, strict=True))
    if named["positions"] is not None:
        named["positions"] = list(named["positions"])
    return {**named, "seal": seals.occupancy(values)}
