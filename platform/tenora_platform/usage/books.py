"""The books of usage: records of the engine become events, rated and counted in the sums, all in
one transaction, each exactly once. Knows neither engine nor outbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.events import UsageRecord
from tenora_platform.billing.rating import Rating
from tenora_platform.billing.service import Rated, rate_events
from tenora_platform.billing.waiting import add_unrated, array_text
from tenora_platform.budgets.accounts import Charge, charge_for
from tenora_platform.db import Database
from tenora_platform.live.noticing import note
from tenora_platform.live.topics import topics_of_table
from tenora_platform.usage import repository
from tenora_platform.usage.booking import begin_booking
from tenora_platform.usage.records import (
    NO_TENANT,
    BadRecordError,
    UsageEvent,
    billable,
    usage_event,
)
from tenora_platform.usage.seal import Seals
from tenora_platform.usage.series import Place, SeriesBook
from tenora_platform.usage.sums import Sums
from tenora_platform.usage.tables import UsageArchiveRow

_TOPICS = topics_of_table("usage_events")
_ATTEMPTS = 5
_LATELY_S = 28 * 86_400.0  # no request of this time can be in a month that is gone


class OvertakenError(Exception):
    """Another process stored one of these events meanwhile; nothing has been stored here."""


@dataclass(frozen=True, slots=True)
class Booked:
    """What became of records: those that cannot be events, with the reasons, and what each of the
    new events costs that have been rated."""

    bad: list[tuple[UsageRecord, str]]
    charges: list[Charge]


class UsageBooks:
    """One for each process that stores usage."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._series = SeriesBook(db)
        self._seals = Seals(db.secret)

    async def store(self, records: Sequence[UsageRecord]) -> Booked:
        """Store what can be an event and is none yet. Raises what the database raises; then nothing
        has been stored."""
        events, bad = await self._sorted_out(records)
        for attempt in range(_ATTEMPTS):
            try:
                async with self._db.admin_session() as session:
                    if attempt:
                        # Rarely: they come anew after a crash, or from two sides at once.
                        there = await repository.stored(
                            session, [each.id.key for each, _ in events]
                        )
                        events = [each for each in events if each[0].id.key not in there]
                    return Booked(bad, await self._write(session, events))
            except OvertakenError:
                if attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError

    async def _sorted_out(
        self, records: Sequence[UsageRecord]
    ) -> tuple[list[tuple[UsageEvent, Place]], list[tuple[UsageRecord, str]]]:
        good: dict[Any, tuple[UsageRecord, UsageEvent]] = {}
        bad: list[tuple[UsageRecord, str]] = []
        for record in records:
            try:
                event = usage_event(record)
                good[event.id.key] = (record, event)
            except BadRecordError as error:
                bad.append((record, str(error)))
        bad += await self._take_archived(good)
        places = await self._series.places(event.series for _, event in good.values())
        bad += [(record, NO_TENANT) for record, each in good.values() if each.series not in places]
        placed = [
            (event, places[event.series]) for _, event in good.values() if event.series in places
        ]
        return placed, bad

    async def _take_archived(
        self, good: dict[Any, tuple[UsageRecord, UsageEvent]]
    ) -> list[tuple[UsageRecord, str]]:
        """Take out those of months that have left the database: whether they have been stored
        before, only the files know."""
        old = {key: month for key in good if (month := _old_month(key[0])) is not None}
        if not old:
            return []
        query = select(UsageArchiveRow.month).where(UsageArchiveRow.dropped_at.is_not(None))
        async with self._db.admin_session() as session:
            gone = set(await session.scalars(query.distinct()))
        return [
            (
                good.pop(key)[0],
                f"the usage of {month:%Y-%m} has been archived, perhaps with this event",
            )
            for key, month in old.items()
            if month in gone
        ]

    async def _write(
        self, session: AsyncSession, events: Sequence[tuple[UsageEvent, Place]]
    ) -> list[Charge]:
        if not events:
            return []
        now = await begin_booking(session, {event.series.tenant_id for event, _ in events})
        priced = [billable(event) for event, _ in events]
        rated = await rate_events(session, priced)
        rows, sums, charges = [], Sums(), []
        for (event, place), each in zip(events, priced, strict=True):
            rating = rated.ratings.get(each.event_id)
            rows.append(self._row(event, place, rating, now))
            sums.add(each, place.series_id, rating, event.id.sequence)
            if rating is not None:
                key = event.series.api_key_id
                charges.append(charge_for(rating, (key,) if key else ()))
        if len(await repository.add_events(session, rows)) != len(rows):
            raise OvertakenError
        await add_unrated(session, _unrated(events, rated))
        await sums.write(session)
        note(session, _TOPICS, {event.series.tenant_id for event, _ in events})
        return charges

    def _row(
        self, event: UsageEvent, place: Place, rating: Rating | None, now: datetime
    ) -> tuple[Any, ...]:
        values = (
            *event.id.key,
            *place,
            event.event_time,
            now,
            event.prompt_tokens,
            event.cached_tokens,
            event.output_tokens,
            event.max_tokens,
            event.cold_loads,
            event.finish_reason,
            event.residency,
            event.queue_ms,
            event.adapter_load_ms,
            event.first_token_ms,
            event.duration_ms,
            event.preemptions,
            event.x_request_id,
            event.sequences,
        )
        if rating is None:
            return (*values, None, None, None, self._seals.event((*values, None, None, None)))
        price = (rating.price_version_no, rating.amount)
        seal = self._seals.event((*values, *price, rating.positions))
        return (*values, *price, array_text(rating.positions), seal)


def _old_month(request: UUID) -> date | None:
    """Its first day, of a request that is not of lately and says when it was."""
    ms = request.int >> 80
    if not ms or ms / 1000 > time.time() - _LATELY_S:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).date().replace(day=1)


def _unrated(
    events: Sequence[tuple[UsageEvent, Place]], rated: Rated
) -> list[tuple[str, tuple[Any, int], str]]:
    if not rated.reasons:
        return []
    return [
        (event.series.tenant_id, event.id.key, rated.reasons[event.id.text])
        for event, _ in events
        if event.id.text in rated.reasons
    ]
