"""HTTP routes of billing: price lists, for the operator and as they hold for a tenant. Costs over
them are in `usage.routes`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.billing import prices, quantities, repository, service
from tenora_platform.billing.preview import dues, preview
from tenora_platform.billing.price_lists import PriceList, Scope, Status
from tenora_platform.billing.repository import Chosen
from tenora_platform.billing.schemas import (
    MissingPrices,
    PricePreview,
    PricePreviewCreate,
    PriceTerms,
    PriceVersion,
    PriceVersionCreate,
    PriceVersionList,
    PriceVersionListed,
    TenantPrice,
    TenantPriceList,
    shown,
)
from tenora_platform.db import Database
from tenora_platform.edge import EdgeRoute
from tenora_platform.invoices.period import end_of, midnight
from tenora_platform.large_answers import large_answer
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Deleted
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.listing import names_of
from tenora_platform.usage.occupancy import rate_waiting_occupancy

router = APIRouter(tags=["billing"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]


async def chosen_prices(
    q: Asked = None,
    tenant: Annotated[
        str | None, Query(description="Only the price lists of the tenant with this id")
    ] = None,
    plan: Annotated[str | None, Query(description="Only the price lists of this plan")] = None,
    model: Annotated[
        str | None, Query(description="Only the price lists of this base model")
    ] = None,
    adapter: Annotated[
        str | None, Query(description="Only the price lists of the adapter with this id")
    ] = None,
    currency: Annotated[
        str | None, Query(pattern="^[A-Z]{3}$", description="Only price lists in this currency")
    ] = None,
    status: Annotated[
        Status | None, Query(description="Only price lists with this status now")
    ] = None,
    sort: Annotated[
        Literal["effective_from", "-effective_from"],
        Query(description="Sort order; '-' in front means newest first"),
    ] = "effective_from",
) -> Chosen:
    """`q` is a part of a name or id of what the list holds for, or of its own."""
    now = datetime.now(UTC)
    return Chosen(now, q, tenant, plan, model, adapter, currency, status, sort)


ChosenPrices = Annotated[Chosen, Depends(chosen_prices)]


@router.get("/v1/prices")
async def list_own_prices(state: State, tenant: UsageTenant) -> TenantPriceList:
    """List the price lists in force for this tenant, and announced ones with their start dates. The
    most specific comes first: a request is priced by the first list in force that matches its model
    and adapter. Prices are per million units; for `device_residency` and `host_residency` that is
    one GB-second, for `stored` one GB-hour."""
    now = datetime.now(UTC)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        found = await prices.of_tenant(session, tenant.tenant_id, tenant.plan.name, now)
        names = await repository.names_of_adapters(
            session, [price.scope.adapter_id for price in found if price.scope.adapter_id]
        )
    return TenantPriceList(
        data=[
            TenantPrice(
                **shown(price),
                status="in_force" if price.holds_at(now) else "announced",
                adapter_name=names.get(price.scope.adapter_id or ""),
            )
            for price in found
        ]
    )


@router.get(
    "/admin/v1/prices",
    response_model=PriceVersionList,
    dependencies=[Depends(require_role(*MONEY_READERS))],
)
async def list_prices(
    state: State,
    chosen: ChosenPrices,
    after: After = None,
    limit: Annotated[
        int | None,
        Query(ge=1, le=100, description="Maximum number to return; default: all of them"),
    ] = None,
) -> Response:
    """List all price lists (past, current and future) except withdrawn ones, oldest first."""
    async with state.db.admin_session() as session:
        found = await repository.page_of_price_lists(session, chosen, after=after, limit=limit)

    def made() -> PriceVersionList:
        rows = [PriceVersionListed.of_row(*each, chosen.now) for each in found]
        return PriceVersionList.of(rows, len(rows) if limit is None else limit)

    return await large_answer(state.large_answers, None, made, items=len(found))


@router.post("/admin/v1/prices", status_code=201, dependencies=[Depends(require_role("billing"))])
async def create_price(body: PriceVersionCreate, state: State, admin: CurrentAdmin) -> PriceVersion:
    """Add a price list, effective now or later. Events that waited for a price are rated at once;
    what has already been rated never changes: 409 `price_in_rated_period` names the earliest date
    allowed, also in `error.earliest_effective_from`. That is the moment after the last rated usage
    in the list's scope, whichever list rated it; so a tenant's own agreement cannot begin before
    usage that the plan's list has rated. All prices are per million units. Units are tokens, loads
    (`cold_load`: "50" is 0.00005 per load), kB-seconds (`device_residency`, `host_residency`: the
    price of one GB-second) and kB-hours (`stored`: the price of one GB-hour). Tiers count what a
    tenant has used in a month (UTC) under this list, separately for each model, meter and class,
    and each unit costs the price of its own tier: `[{"price": "0.40"}, {"from": 1000000000,
    "price": "0.30"}]` is 400.00 for the first billion tokens and 300.00 for the next. A list that
    begins within a month counts from its start."""
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
    """Add prices for meters and classes that a list does not price yet; usage that waited for them
    is rated at once. Existing prices cannot be changed: 409 `price_in_use`."""
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
async def preview_price(
    body: PricePreviewCreate,
    session: AdminSession,
    after: After = None,
    limit: Annotated[
        int | None,
        Query(ge=1, le=1000, description="Maximum number of tenants to return; default: all"),
    ] = None,
) -> PricePreview:
    """Preview what a month's usage would have cost each tenant under a list like this for the whole
    month, beside what it did cost; nothing is changed. The list replaces what its scope covers,
    unless a more specific list rated it. `due_before` and `due_after` take included usage and
    minimums into account. Sums are over all tenants; `limit` bounds how many tenants are listed, by
    id, and `after` is the last id of the page before."""
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
    customers = await quantities.customers_of(session, midnight(end_of(month)), changes)
    due = dues(new, month, lists, customers, changes)
    found = PricePreview.of(f"{month:%Y-%m}", changes, due)
    found.take(after, limit)
    names = await names_of(session, [each.tenant for each in found.data])
    for each in found.data:
        each.tenant_name = names.get(each.tenant)
    return found


def _month(text: str | None) -> date:
    """Its first day; by default of the last month that has ended."""
    if text is not None:
        return date.fromisoformat(f"{text}-01")
    return (datetime.now(UTC).date().replace(day=1) - timedelta(days=1)).replace(day=1)


@router.delete("/admin/v1/prices/{version_id}", dependencies=[Depends(require_role("billing"))])
async def withdraw_price(version_id: str, state: State, admin: CurrentAdmin) -> Deleted:
    """Withdraw a price list that has not rated any usage; 409 `price_in_use` if it has."""
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
