"""HTTP routes of plans and tenants, the operator's. Keys have a module of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from tenora_platform.auth import (
    CurrentAdmin,
    plan_terms,
    require_role,
)
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.repository import price_lists
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants import listing, repository
from tenora_platform.tenants.listing import Chosen, Spent
from tenora_platform.tenants.ranks import this_month
from tenora_platform.tenants.schemas import (
    Plan,
    PlanBody,
    PlanList,
    PlanListed,
    Tenant,
    TenantChange,
    TenantCreate,
    TenantListed,
    TenantPage,
)
from tenora_platform.tenants.service import TenantService
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.service import money

router = APIRouter(prefix="/admin/v1", tags=["admin"], route_class=EdgeRoute)

PlanSort = Annotated[
    Literal["name", "-name", "tenants", "-tenants"],
    Query(description="Sort order; '-' in front means descending"),
]
PlanName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


async def admin_service(session: AdminSession, state: State, admin: CurrentAdmin) -> TenantService:
    return TenantService(session, audit=state.audit, actor=admin.actor)


async def chosen_tenants(
    q: Asked = None,
    plan: Annotated[
        str | None, Query(max_length=200, description="Only tenants on this plan")
    ] = None,
    status: Annotated[
        listing.Status | None, Query(description="Only tenants with this status")
    ] = None,
    sort: Annotated[
        listing.Sort,
        Query(
            description="Sort order; '-' in front means descending. `spend` sorts by what was "
            "spent this month in `currency`, `requests` by the requests of today."
        ),
    ] = "-created",
    currency: Annotated[
        str,
        Query(pattern="^[A-Z]{3}$", description="The currency that the sort order `spend` uses"),
    ] = "USD",
) -> Chosen:
    """`q` is a part of the name or id."""
    return Chosen(q=q, plan=plan, status=status, sort=sort, currency=currency)


ChosenTenants = Annotated[Chosen, Depends(chosen_tenants)]
# Function scope, as the sessions have.
AdminTenants = Annotated[TenantService, Depends(admin_service, scope="function")]


@router.get("/plans", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_plans(
    session: AdminSession,
    q: Asked = None,
    sort: PlanSort = "name",
    after: After = None,
    limit: Limit = 100,
) -> PlanList:
    """List plans by name or by number of tenants. `after` is a plan's name."""
    now = datetime.now(UTC)
    found = await repository.page_of_plans(session, asked=q, sort=sort, after=after, limit=limit)
    prices = Prices(await price_lists(session, now, now, tenants=()))
    shown = [
        PlanListed.of(
            plan_terms(plan),
            id=plan.name,
            tenants=on.all,
            tenants_suspended=on.suspended,
            currencies=prices.currencies_of("", plan.name, now),
        )
        for plan, on in found
    ]
    return PlanList.of(shown, limit)


@router.put("/plans/{name}", dependencies=[Depends(require_role("operator"))])
async def put_plan(
    name: PlanName, body: PlanBody, service: AdminTenants, session: AdminSession, state: State
) -> Plan:
    """Create or replace a plan; its tenants have the new terms at once."""
    plan = Plan.of(plan_terms(await service.put_plan(name, body)))
    await state.auth.commit_change(session)
    return plan


@router.post("/tenants", status_code=201, dependencies=[Depends(require_role("operator"))])
async def create_tenant(body: TenantCreate, service: AdminTenants, answer: Response) -> Tenant:
    """Create a tenant. If other tenants have the same name, it is created anyway and
    `x-tenora-warning` names them; with `if_name_exists: "refuse"` the answer is 409
    `tenant_name_exists` instead, with their ids in the message and, separated by commas, in
    `error.tenants`."""
    row = await service.create_tenant(body)
    if same := await service.namesakes(row.name, but=row.id):
        answer.headers["x-tenora-warning"] = f"other tenants have the same name: {', '.join(same)}"
    return Tenant.model_validate(row)


@router.get("/tenants", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_tenants(
    session: AdminSession,
    state: State,
    chosen: ChosenTenants,
    after: After = None,
    limit: Limit = 20,
) -> TenantPage:
    """List tenants, newest first unless `sort` says otherwise, each with its spend of this month
    (UTC). The order by `spend` or `requests` may be some seconds old; the values shown are
    current."""
    days = this_month(datetime.now(UTC))
    rows = await listing.page(session, state.ranks, chosen, days, after=after, limit=limit)
    spent = await listing.spent(session, [row.id for row in rows], days)
    shown = [_listed(row, spent[row.id]) for row in rows]
    return TenantPage.of(shown, limit, total=await listing.count(session, chosen))


def _listed(row: TenantRow, spent: Spent) -> TenantListed:
    return TenantListed(
        **Tenant.model_validate(row).model_dump(),
        spend_month={currency: money(amount) for currency, amount in spent.amounts.items()},
        unrated_events=spent.unrated,
        requests_today=spent.requests_today,
    )


@router.get("/tenants/{tenant_id}", dependencies=[Depends(require_role(*MONEY_READERS))])
async def get_tenant(tenant_id: str, service: AdminTenants) -> Tenant:
    return Tenant.model_validate(await service.tenant(tenant_id))


@router.patch("/tenants/{tenant_id}", dependencies=[Depends(require_role("operator"))])
async def change_tenant(
    tenant_id: str, body: TenantChange, service: AdminTenants, session: AdminSession, state: State
) -> Tenant:
    """Rename, change the plan, suspend or activate; in force for the next request. Suspending ends
    requests in flight, which are charged to nobody. 409 `tenant_deleted` until it is restored."""
    tenant = Tenant.model_validate(await service.change_tenant(tenant_id, body))
    await state.auth.commit_change(session, tenant_id)
    if tenant.status == "suspended":
        await state.flights.tenant_suspended(tenant_id)
    return tenant
