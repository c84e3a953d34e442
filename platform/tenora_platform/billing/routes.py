"""HTTP routes of billing: price lists, for the operator and as they hold for a tenant. Costs over
them are in `usage.routes`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.billing import prices, quantities, repository, service
from tenora_platform.billing.preview import dues, preview
from tenora_platform.billing.price_lists import PriceList, Scope
from tenora_platform.billing.schemas import (
    MissingPrices,
    PricePreview,
    PricePreviewCreate,
    PriceTerms,
    PriceVersion,
    PriceVersionCreate,
    PriceVersionList,
    TenantPrice,
    TenantPriceList,
    shown,
)
from tenora_platform.db import Database
from tenora_platform.edge import EdgeRoute
from tenora_platform.invoices.period import end_of, midnight
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import Deleted
from tenora_platform.state import AdminSession, State
from tenora_platform.usage.occupancy import rate_waiting_occupancy

router = APIRouter(tags=["billing"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]


@router.get("/v1/prices")
async def list_own_prices(state: State, tenant: UsageTenant) -> TenantPriceList:
    """The price lists that hold for this tenant now, and those that are announced, with the dates
    from which they hold. The most specific comes first: a request is priced by the first list in
    force that fits its model and adapter. Prices are of a million units; for `device_residency` and
    `host_residency` that is a GB-second, for `stored` a GB-hour."""
    now = datetime.now(UTC)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        found = await prices.of_tenant(session, tenant.tenant_id, tenant.plan.name, now)
    return TenantPriceList(
        data=[
            TenantPrice(**shown(price), status="in_force" if price.holds_at(now) else "announced")
            for price in found
        ]
    )


@router.get("/admin/v1/prices", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_prices(session: AdminSession) -> PriceVersionList:
    """Every price list there was, is and will be, oldest first; none that was withdrawn."""
    found = await repository.price_lists(session)
    return PriceVersionList(data=[PriceVersion.of(price) for price in found])


@router.post("/admin/v1/prices", status_code=201, dependencies=[Depends(require_role("billing"))])
async def create_price(body: PriceVersionCreate, state: State, admin: CurrentAdmin) -> PriceVersion:
    """Add a price list, now or announced for later. Events that waited for a price are rated at
    once; what has been rated before is never changed: 409 `price_in_rated_period` names the
    earliest date allowed, also as `error.earliest_effective_from`. That is the moment after the
    last use of the list's scope that was rated, by whatever list; so a tenant's own agreement
    cannot begin before usage that the plan's list has rated.

    All prices are of a million units. Units are tokens, loads (`cold_load`: "50" is 0.00005 a
    load), kB seconds (`device_residency`, `host_residency`: the price of a GB-second) and kB hours
    (`stored`: the price of a GB-hour). Tiers count what a tenant has used in a month (UTC) under
    this list, each model, meter and class apart, and each unit costs what its own tier says:
    `[{"price": "0.40"}, {"from": 1000000000, "price": "0.30"}]` is 400.00 for the first thousand
    million tokens and 300.00 for the next. A list that begins within a month counts from there."""
    async with state.db.admin_session() as session:
        price = await prices.add_price_version(
            session,
            scope=scope_of(body),
            terms=terms_of(body),
            effective_from=body.effective_from,
        )
        await state.audit.append(
            session,
            actor=admin.actor,
            action="price_version.create",
            target=price.id,
            after=shown(price),
        )
    await _rate_waiting(state.db)
    return PriceVersion.of(price)


@router.patch("/admin/v1/prices/{version_id}", dependencies=[Depends(require_role("billing"))])
async def add_missing_prices(
    version_id: str, body: MissingPrices, state: State, admin: CurrentAdmin
) -> PriceVersion:
    """Add prices for meters and classes that a list has none for; usage that waited for them is
    rated at once. What has a price keeps it: 409 `price_in_use`."""
    async with state.db.admin_session() as session:
        before, after = await prices.add_missing_prices(session, version_id, body.tiers())
        await state.audit.append(
            session,
            actor=admin.actor,
            action="price_version.update",
            target=version_id,
            before=shown(before),
            after=shown(after),
        )
    await _rate_waiting(state.db)
    return PriceVersion.of(after)


@router.post("/admin/v1/prices/preview", dependencies=[Depends(require_role(*MONEY_READERS))])
async def preview_price(body: PricePreviewCreate, session: AdminSession) -> PricePreview:
    """What a month's usage would have cost each tenant by a list like this, had it held for all of
    the month, beside what it did cost; nothing is changed. It takes over what its scope covers,
    unless a more specific list rated it. `due_before` and `due_after` are with what lists include
    and ask for at least."""
    month = _month(body.month)
    new = PriceList(
        id="",
        no=0,
        scope=await prices.of_somebody(session, scope_of(body)),
        currency=body.currency,
        effective_from=midnight(month),
        effective_to=None,
        tiers=body.per_million.tiers(),
        minimum=body.minimum,
        included=body.included,
    )
    lists = await repository.price_lists(session)
    used = await quantities.month_used(session, month, lists)
    changes = preview(new, used)
    until = midnight(end_of(month))
    plans = await quantities.plans_of(session, until, changes)
    return PricePreview.of(f"{month:%Y-%m}", changes, dues(new, until, lists, plans, changes))


def _month(text: str | None) -> date:
    """Its first day; by default of the last month that has ended."""
    if text is not None:
        return date.fromisoformat(f"{text}-01")
    return (datetime.now(UTC).date().replace(day=1) - timedelta(days=1)).replace(day=1)


@router.delete("/admin/v1/prices/{version_id}", dependencies=[Depends(require_role("billing"))])
async def withdraw_price(version_id: str, state: State, admin: CurrentAdmin) -> Deleted:
    """Take back a price list that has rated nothing; 409 `price_in_use` once it has."""
    async with state.db.admin_session() as session:
        price = await prices.withdraw_price_version(session, version_id)
        await state.audit.append(
            session,
            actor=admin.actor,
            action="price_version.withdraw",
            target=price.id,
            before=shown(price),
        )
    await _rate_waiting(state.db)
    return Deleted(id=price.id, object="price_version")


async def _rate_waiting(db: Database) -> None:
    """What the change has given a price."""
    await service.rate_waiting(db)
    await rate_waiting_occupancy(db)


def scope_of(body: PriceTerms) -> Scope:
    return Scope(body.adapter, body.tenant, body.plan, body.model)


def terms_of(body: PriceTerms) -> prices.Terms:
    return prices.Terms(
        currency=body.currency,
        tiers=body.per_million.tiers(),
        minimum=body.minimum,
        included=body.included,
    )
