"""Rates events. Whatever cannot be rated fails closed: the event waits, with the reason, and is
rated once it can be. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import quantities, repository, waiting
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
from tenora_platform.billing.waiting import Waiting
from tenora_platform.db import Database, plain_reason
from tenora_platform.usage.booking import begin_booking
from tenora_platform.usage.seal import Seals
from tenora_platform.usage.sums import Sums

RERATE_BATCH = 500
_NANOS_END = 10**18
"""Of one event: sums of nanos are BIGINT, which has room for nine of these."""
_UNFORESEEN = (DataError, IntegrityError, ArithmeticError, ValueError)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rated:
    """What became of events, by id: those that have been rated, and why the others wait."""

    ratings: dict[str, Rating]
    reasons: dict[str, str]


async def rate_events(session: AsyncSession, events: Sequence[Billable]) -> Rated:
    """Rate new events, in the transaction that stores them; call it once for each event. Never at
    the events' cost: what the checks did not foresee leaves all of them waiting."""
    if not events:
        return Rated({}, {})
    try:
        async with session.begin_nested():
            await repository.lock_prices(session, to_change=False)
            return await _rated(session, events)
    except _UNFORESEEN as error:
        _log.exception("usage events cannot be rated", events=len(events))
        reason = f"rating failed: {plain_reason(error)}"
        return Rated({}, {event.event_id: reason for event in events})


async def _rated(session: AsyncSession, events: Sequence[Billable]) -> Rated:
    times = [event.event_time for event in events]
    tenants = {event.tenant_id for event in events}
    lists = await repository.price_lists(session, min(times), max(times), tenants=tenants)
    prices = Prices(lists)
    found: list[Priced] = []
    reasons: dict[str, str] = {}
    for event in events:
        try:
            found.append(priced(prices, event))
        except UnratableError as why:
            reasons[event.event_id] = str(why)
    ratings, too_dear = await _placed(session, found)
    return Rated(ratings, reasons | too_dear)


async def _placed(
    session: AsyncSession, found: Sequence[Priced]
) -> tuple[dict[str, Rating], dict[str, str]]:
    """(ratings, why the others wait) by event. What is too dear for the sums takes no place in a
    month's tiers, however often it is tried."""
    left = list(found)
    reasons: dict[str, str] = {}
    while True:
        taken = await session.begin_nested()
        starts = await quantities.take_volumes(session, volumes_of(left))
        ratings = {each.event.event_id: each for each in place(left, starts)}
        dear = {id_: each for id_, each in ratings.items() if each.nanos >= _NANOS_END}
        if not dear:
            await taken.commit()
            return ratings, reasons
        await taken.rollback()
        for id_, each in dear.items():
            reasons[id_] = (
                f"it would cost {each.amount:.0f}, which is larger than the sums can store"
            )
        left = [each for each in left if each.event.event_id not in dear]


async def rate_waiting(db: Database) -> int:
    """Rate every event that waits and can be rated by now; returns how many. Small transactions: it
    may be ended at any point and run again."""
    rated, after = 0, 0
    while True:
        done, after = await _rate_batch(db, after, RERATE_BATCH)
        if not after:
            return rated
        rated += done


async def _rate_batch(db: Database, after: int, limit: int) -> tuple[int, int]:
    """(how many of the next `limit` that wait were rated, the last one's number or 0). Should a
    batch fail as a whole, each of it is tried alone: one event keeps no other from being rated."""
    try:
        async with db.admin_session() as session:
            now = await begin_booking(session)
            await repository.lock_prices(session, to_change=False)
            found = await waiting.take_unrated(session, after, limit)
            if not found:
                return 0, 0
            return await _rate_taken(session, Seals(db.secret), found, now), found[-1].mark.no
    except _UNFORESEEN:
        if limit == 1:
            _log.exception("a usage event cannot be rated", after=after)
            return 0, await _next_waiting(db, after)
    rated = 0
    for _ in range(limit):
        done_alone, after = await _rate_batch(db, after, 1)
        rated += done_alone
        if not after:
            break
    return rated, after


async def _rate_taken(
    session: AsyncSession, seals: Seals, found: Sequence[Waiting], now: datetime
) -> int:
    """Rate what can be rated of these, and move the sums with them."""
    whole = [each for each in found if seals.holds(each.row)]
    if len(whole) < len(found):
        # Rated, they would be sealed anew. The reconciliation names them.
        _log.error(
            "usage events that wait for a price were modified", events=len(found) - len(whole)
        )
    if not whole:
        return 0
    events = [each.billable for each in whole]
    ratings = (await _rated(session, events)).ratings
    done, sums = [], Sums()
    for each, event in zip(whole, events, strict=True):
        rating = ratings.get(event.event_id)
        if rating is not None:
            done.append((each, rating))
            sums.take(event, each.row.series_id, None, each.row.sequence)
            sums.add(event, each.row.series_id, rating, each.row.sequence)
    await waiting.set_ratings(session, seals, done, now)
    await sums.write(session)
    return len(done)


async def _next_waiting(db: Database, after: int) -> int:
    async with db.admin_session() as session:
        return await waiting.next_unrated(session, after) or 0
