"""Price versions as they are added and withdrawn. What has been rated is never touched: a version
neither begins where something was rated nor goes once it has rated something. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import repository
from tenora_platform.billing.rating import PriceList
from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.errors import ConflictError, NotFoundError
from tenora_platform.ids import new_id

_TICK = timedelta(microseconds=1)  # PostgreSQL's own


async def add_price_version(
    session: AsyncSession,
    *,
    model: str | None,
    plan: str | None,
    currency: str,
    effective_from: datetime | None,
    per_million: Mapping[str, Decimal],
) -> PriceList:
    """A new list for one model and plan (None: any), from `effective_from` until the next one of
    the same scope; the one before it ends there. None is the earliest time that is allowed, from
    now on. Raises ConflictError if a list of that scope begins at the same moment, or if something
    has been rated in the time it would hold: which bills it was on would hang on chance."""
    # Whoever rates holds the same lock, in whatever process: what the checks below see stays so.
    await repository.lock_prices(session, to_change=True)
    same_scope = [
        price
        for price in await repository.price_lists(session)
        if price.model == model and price.plan == plan
    ]
    begins = [price.effective_from for price in same_scope]
    begin = effective_from
    if begin is None:
        begin = await _earliest(session, model, plan, begins, at_least=datetime.now(UTC))
    if begin in begins:
        raise ConflictError(
            f"A price list of this scope begins at {begin.isoformat()} already.",
            param="effective_from",
        )
    end = min((other for other in begins if other > begin), default=None)
    if await repository.last_rated(session, model, plan, begin, end) is not None:
        earliest = await _earliest(session, model, plan, begins, at_least=begin)
        raise ConflictError(
            f"Usage from {begin.isoformat()} on has been rated already, and what has been rated "
            f"does not change. The earliest date allowed is {earliest.isoformat()}.",
            param="effective_from",
            code="price_in_rated_period",
            details={"earliest_effective_from": earliest.isoformat()},
        )
    before = [price for price in same_scope if price.effective_from < begin]
    if before and (before[-1].effective_to is None or before[-1].effective_to > begin):
        previous = await session.get_one(PriceVersionRow, before[-1].id)
        previous.effective_to = begin
    row = PriceVersionRow(
        id=new_id("price"),
        model=model,
        plan=plan,
        currency=currency,
        effective_from=begin,
        effective_to=end,
    )
    session.add(row)
    await session.flush()
    for meter, price in per_million.items():
        session.add(PriceRow(price_version_id=row.id, meter=meter, per_million=price))
    await session.flush()
    return PriceList(row.id, model, plan, currency, begin, end, per_million)


async def _earliest(
    session: AsyncSession,
    model: str | None,
    plan: str | None,
    taken: Sequence[datetime],
    *,
    at_least: datetime,
) -> datetime:
    """The first time after all that was rated in this scope at which no other list begins."""
    last = await repository.last_rated(session, model, plan, at_least, None)
    earliest = at_least if last is None else last + _TICK
    while earliest in taken:
        earliest += _TICK
    return earliest


async def withdraw_price_version(session: AsyncSession, version_id: str) -> PriceList:
    """Take back a list that has rated nothing: the one before it holds on in its place, and its
    beginning is free again. Raises NotFoundError; ConflictError once it has rated something."""
    await repository.lock_prices(session, to_change=True)
    prices = await repository.price_lists(session)
    price = next((each for each in prices if each.id == version_id), None)
    if price is None:
        raise NotFoundError(f"There is no price version {version_id[:80]!r}.", param="id")
    if await repository.has_rated(session, price):
        raise ConflictError(
            f"The price version {version_id} has rated usage and stays. A new version with a later "
            "effective_from ends it.",
            param="id",
            code="price_in_use",
        )
    for other in prices:
        same_scope = (other.model, other.plan) == (price.model, price.plan)
        if same_scope and other.effective_to == price.effective_from:
            previous = await session.get_one(PriceVersionRow, other.id)
            previous.effective_to = price.effective_to
    row = await session.get_one(PriceVersionRow, version_id)
    row.withdrawn_at = datetime.now(UTC)
    await session.flush()
    return price
