"""Rates stored events and keeps the price lists. A missing price fails closed: the event is marked
unrated, and rated once there is a price. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import repository
from tenora_platform.billing.rating import (
    Billable,
    MissingPriceError,
    PriceList,
    RatedLine,
    rate,
)
from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.db import Database
from tenora_platform.errors import ConflictError
from tenora_platform.ids import new_id

RERATE_BATCH = 500


async def rate_events(session: AsyncSession, events: Sequence[Billable]) -> None:
    """Write the lines of newly stored events, in their own transaction; those without a price are
    marked. Call it once for each event."""
    if not events:
        return
    await repository.lock_prices(session, to_change=False)
    lines, unrated = await _rated(session, events)
    await repository.add_lines(session, lines)
    await repository.add_unrated(session, unrated)


async def _rated(
    session: AsyncSession, events: Sequence[Billable]
) -> tuple[list[RatedLine], list[tuple[Billable, str]]]:
    times = [event.event_time for event in events]
    prices = await repository.price_lists(session, min(times), max(times))
    lines: list[RatedLine] = []
    unrated: list[tuple[Billable, str]] = []
    for event in events:
        try:
            lines += rate(prices, event)
        except MissingPriceError as missing:
            unrated.append((event, str(missing)))
    return lines, unrated


async def rate_waiting(db: Database) -> int:
    """Rate every event that waits and has a price by now; returns how many. Small transactions: it
    may be ended at any point and run again."""
    rated, after = 0, ""
    while True:
        async with db.admin_session() as session:
            await repository.lock_prices(session, to_change=False)
            events = await repository.take_unrated(session, after, RERATE_BATCH)
            if not events:
                return rated
            after = events[-1].event_id
            lines, still = await _rated(session, events)
            waiting = {event.event_id for event, _ in still}
            done = [event.event_id for event in events if event.event_id not in waiting]
            await repository.add_lines(session, lines)
            await repository.drop_unrated(session, done)
            rated += len(done)


async def add_price_version(
    session: AsyncSession,
    *,
    model: str | None,
    plan: str | None,
    currency: str,
    effective_from: datetime | None,
    per_million: dict[str, Decimal],
) -> PriceList:
    """A new list for one model and plan (None: any), from `effective_from` (now, if None) until the
    next one of the same scope; the one before it ends there. What has been rated stays as it is.
    Raises ConflictError if a list of that scope begins at the same moment."""
    await repository.lock_prices(session, to_change=True)
    begin = effective_from or datetime.now(UTC)
    same_scope = [
        price
        for price in await repository.price_lists(session)
        if price.model == model and price.plan == plan
    ]
    if any(price.effective_from == begin for price in same_scope):
        raise ConflictError(
            f"A price list of this scope begins at {begin.isoformat()} already.",
            param="effective_from",
        )
    before = [price for price in same_scope if price.effective_from < begin]
    later = [price.effective_from for price in same_scope if price.effective_from > begin]
    if before and (before[-1].effective_to is None or before[-1].effective_to > begin):
        previous = await session.get_one(PriceVersionRow, before[-1].id)
        previous.effective_to = begin
    row = PriceVersionRow(
        id=new_id("price"),
        model=model,
        plan=plan,
        currency=currency,
        effective_from=begin,
        effective_to=min(later, default=None),
    )
    session.add(row)
    await session.flush()
    for meter, price in per_million.items():
        session.add(PriceRow(price_version_id=row.id, meter=meter, per_million=price))
    await session.flush()
    return PriceList(row.id, model, plan, currency, begin, row.effective_to, per_million)
