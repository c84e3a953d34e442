"""Rates stored events. Whatever cannot be rated fails closed: the event is marked unrated, with the
reason, and rated once it can be. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import quantities, repository
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.rating import (
    Billable,
    Priced,
    Rating,
    UnratableError,
    place,
    priced,
    volumes_of,
)
from tenora_platform.db import Database, plain_reason

RERATE_BATCH = 500
_UNFORESEEN = (DataError, IntegrityError, ArithmeticError, ValueError)
_log = structlog.get_logger(__name__)


async def rate_events(session: AsyncSession, events: Sequence[Billable]) -> list[Rating]:
    """Write and return the ratings of newly stored events, in their own transaction; those that
    cannot be rated are marked. Call it once for each event. Never at the events' cost: what the
    checks did not foresee leaves all of them marked."""
    if not events:
        return []
    try:
        async with session.begin_nested():
            await repository.lock_prices(session, to_change=False)
            ratings, unrated = await _rated(session, events)
            await repository.add_ratings(session, ratings)
            await repository.add_unrated(session, unrated)
            return ratings
    except _UNFORESEEN as error:
        _log.exception("events cannot be rated", events=len(events))
        reason = f"rating failed: {plain_reason(error)}"
        await repository.add_unrated(session, [(event, reason) for event in events])
        return []


async def _rated(
    session: AsyncSession, events: Sequence[Billable]
) -> tuple[list[Rating], list[tuple[Billable, str]]]:
    times = [event.event_time for event in events]
    prices = Prices.of(await repository.price_lists(session, min(times), max(times)))
    found: list[Priced] = []
    unrated: list[tuple[Billable, str]] = []
    for event in events:
        try:
            found.append(priced(prices, event))
        except UnratableError as why:
            unrated.append((event, str(why)))
    starts = await quantities.take_volumes(session, volumes_of(found))
    return place(found, starts), unrated


async def rate_waiting(db: Database) -> int:
    """Rate every event that waits and can be rated by now; returns how many. Small transactions: it
    may be ended at any point and run again."""
    rated, after = 0, ""
    while True:
        done, after = await _rate_batch(db, after, RERATE_BATCH)
        if not after:
            return rated
        rated += done


async def _rate_batch(db: Database, after: str, limit: int) -> tuple[int, str]:
    """(how many of the next `limit` that wait were rated, the last one's id or ""). Should a batch
    fail as a whole, each of it is tried alone: one event keeps no other from being rated."""
    try:
        async with db.admin_session() as session:
            await repository.lock_prices(session, to_change=False)
            events = await repository.take_unrated(session, after, limit)
            if not events:
                return 0, ""
            ratings, _ = await _rated(session, events)
            done = [rating.event.event_id for rating in ratings]
            await repository.add_ratings(session, ratings)
            await repository.drop_unrated(session, done)
            return len(done), events[-1].event_id
    except _UNFORESEEN:
        if limit == 1:
            _log.exception("an event cannot be rated", after=after)
            return 0, await _next_waiting(db, after)
    rated = 0
    for _ in range(limit):
        done_alone, after = await _rate_batch(db, after, 1)
        rated += done_alone
        if not after:
            break
    return rated, after


async def _next_waiting(db: Database, after: str) -> str:
    async with db.admin_session() as session:
        return await repository.next_unrated(session, after) or ""
