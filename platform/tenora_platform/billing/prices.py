"""Price versions as they are added and withdrawn. What has been rated is never touched: a version
neither begins where something was rated nor goes once it has rated something. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing import repository
from tenora_platform.billing.price_lists import Meter, PriceList, Scope, Tiers, specificity
from tenora_platform.billing.tables import PriceRow, PriceVersionRow
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.ids import new_id
from tenora_platform.tenants.repository import get_tenant, require_not_erased

_TICK = timedelta(microseconds=1)  # PostgreSQL's own


@dataclass(frozen=True)
class Terms:
    """What a new list says."""

    currency: str
    tiers: Mapping[tuple[Meter, str], Tiers]
    minimum: Decimal = Decimal(0)
    included: Decimal = Decimal(0)


async def add_price_version(
    session: AsyncSession,
    scope: Scope,
    terms: Terms,
    effective_from: datetime | None,
) -> PriceList:
    """A new list of this scope, from `effective_from` until the next one of the same scope; the one
    before it ends there. None is the earliest time that is allowed, from now on. Raises
    BadRequestError for a tenant or adapter that there is not; ConflictError for a tenant that was
    erased, if a list of that scope begins at the same moment, or if something of that scope has
    been rated in the time it would hold, by whatever list: which bills it was on would hang
    on chance."""
    # Whoever rates holds the same lock, in whatever process: what the checks below see stays so.
    await repository.lock_prices(session, to_change=True)
    scope = await of_somebody(session, scope)
    if scope.tenant_id is not None:
        await require_not_erased(session, scope.tenant_id)
    same_scope = [price for price in await repository.price_lists(session) if price.scope == scope]
    begins = [price.effective_from for price in same_scope]
    begin = effective_from
    if begin is None:
        begin = await _earliest(session, scope, begins, at_least=datetime.now(UTC))
    if begin in begins:
        raise ConflictError(
            f"A price list for this scope already begins at {begin.isoformat()}.",
            param="effective_from",
        )
    end = min((other for other in begins if other > begin), default=None)
    if await repository.last_rated(session, scope, begin, end) is not None:
        earliest = await _earliest(session, scope, begins, at_least=begin)
        raise ConflictError(
            f"Usage from {begin.isoformat()} on has already been rated, and rated usage never "
            f"changes. The earliest allowed effective_from is {earliest.isoformat()}.",
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
        model=scope.model,
        plan=scope.plan,
        tenant_id=scope.tenant_id,
        adapter_id=scope.adapter_id,
        currency=terms.currency,
        effective_from=begin,
        effective_to=end,
        minimum=terms.minimum,
        included=terms.included,
    )
    session.add(row)
    await session.flush()
    _add_prices(session, row.id, terms.tiers)
    await session.flush()
    return PriceList(
        id=row.id,
        no=row.no,
        scope=scope,
        currency=terms.currency,
        effective_from=begin,
        effective_to=end,
        tiers=terms.tiers,
        minimum=terms.minimum,
        included=terms.included,
    )


async def of_somebody(session: AsyncSession, scope: Scope) -> Scope:
    """The scope with the tenant whose adapter it names: nobody else may see that list. Raises
    BadRequestError for a tenant or adapter that there is not."""
    if scope.adapter_id is not None:
        owner = await repository.owner_of(session, scope.adapter_id)
        if owner is None or scope.tenant_id not in (None, owner):
            whose = "" if scope.tenant_id is None else f" of tenant {scope.tenant_id[:80]!r}"
            raise BadRequestError(
                f"There is no adapter {scope.adapter_id[:80]!r}{whose}.",
                param="adapter",
                code="invalid_value",
            )
        return scope._replace(tenant_id=owner)
    if scope.tenant_id is not None and await get_tenant(session, scope.tenant_id) is None:
        raise BadRequestError(
            f"There is no tenant with the id {scope.tenant_id[:80]!r}.",
            param="tenant",
            code="invalid_value",
        )
    return scope


async def _earliest(
    session: AsyncSession,
    scope: Scope,
    taken: Sequence[datetime],
    *,
    at_least: datetime,
) -> datetime:
    """The first time after all that was rated in this scope at which no other list begins."""
    last = await repository.last_rated(session, scope, at_least, None)
    earliest = at_least if last is None else last + _TICK
    while earliest in taken:
        earliest += _TICK
    return earliest


async def of_tenant(
    session: AsyncSession, tenant_id: str, plan: str, now: datetime
) -> list[PriceList]:
    """The lists that hold or will hold for a tenant of this plan, the most specific first, of one
    scope the oldest. In a session of the tenant's, which sees nobody else's."""
    found = [
        price
        for price in await repository.price_lists(session, first=now)
        if price.scope.tenant_id in (None, tenant_id) and price.scope.plan in (None, plan)
    ]
    return sorted(found, key=lambda price: specificity(price.scope), reverse=True)


async def add_missing_prices(
    session: AsyncSession, version_id: str, tiers: Mapping[tuple[Meter, str], Tiers]
) -> tuple[PriceList, PriceList]:
    """Price what a list has no price for, so that usage which waits for it can be rated: nothing
    that this list has rated could change. Gives it as it was and as it is. Raises NotFoundError,
    and ConflictError for what has a price, its class's or that of any class."""
    await repository.lock_prices(session, to_change=True)
    before = await _find(session, version_id)
    for meter, class_ in tiers:
        if (meter, class_) in before.tiers or before.tiers_of(meter, class_) is not None:
            of = f"class {class_}" if class_ else "any class"
            raise ConflictError(
                f"The price version {version_id} already has a price for {meter} of {of}, which "
                "cannot be changed. To replace it, add a new version with a later "
                "effective_from.",
                param=f"per_million.{meter}",
                code="price_in_use",
            )
    _add_prices(session, version_id, tiers)
    await session.flush()
    return before, replace(before, tiers={**before.tiers, **tiers})


async def _find(session: AsyncSession, version_id: str) -> PriceList:
    prices = await repository.price_lists(session)
    price = next((each for each in prices if each.id == version_id), None)
    if price is None:
        raise NotFoundError(f"There is no price version {version_id[:80]!r}.", param="id")
    return price


def _add_prices(
    session: AsyncSession, version_id: str, tiers: Mapping[tuple[Meter, str], Tiers]
) -> None:
    for (meter, class_), each in tiers.items():
        for quantity, price in each:
            session.add(
                PriceRow(
                    price_version_id=version_id,
                    meter=meter,
                    class_=class_,
                    from_quantity=quantity,
                    per_million=price,
                )
            )


async def withdraw_price_version(session: AsyncSession, version_id: str) -> PriceList:
    """Take back a list that has rated nothing: the one before it holds on in its place, and its
    beginning is free again. Raises NotFoundError; ConflictError once it has rated something."""
    await repository.lock_prices(session, to_change=True)
    price = await _find(session, version_id)
    if await repository.has_rated(session, price):
        raise ConflictError(
            f"The price version {version_id} has already rated usage and cannot be deleted. To "
            "replace it, add a new version with a later effective_from.",
            param="id",
            code="price_in_use",
        )
    for other in await repository.price_lists(session):
        if other.scope == price.scope and other.effective_to == price.effective_from:
            previous = await session.get_one(PriceVersionRow, other.id)
            previous.effective_to = price.effective_to
    row = await session.get_one(PriceVersionRow, version_id)
    row.withdrawn_at = datetime.now(UTC)
    await session.flush()
    return price
