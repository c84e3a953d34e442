"""HTTP routes of plans and tenants, the operator's. Keys have a module of their own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from tenora_platform.auth import (
    CurrentAdmin,
    plan_terms,
    require_role,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants import repository
from tenora_platform.tenants.schemas import (
    Plan,
    PlanBody,
    PlanList,
    Tenant,
    TenantChange,
    TenantCreate,
    TenantPage,
)
from tenora_platform.tenants.service import TenantService

router = APIRouter(prefix="/admin/v1", tags=["admin"], route_class=EdgeRoute)

PlanName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


async def admin_service(session: AdminSession, state: State, admin: CurrentAdmin) -> TenantService:
    return TenantService(session, audit=state.audit, actor=admin.actor)


# Function scope, as the sessions have.
AdminTenants = Annotated[TenantService, Depends(admin_service, scope="function")]


@router.get("/plans", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_plans(session: AdminSession) -> PlanList:
    """Every plan, by name."""
    plans = await repository.list_plans(session)
    return PlanList(data=[Plan.of(plan_terms(plan)) for plan in plans])


@router.put("/plans/{name}", dependencies=[Depends(require_role("operator"))])
async def put_plan(
    name: PlanName, body: PlanBody, service: AdminTenants, session: AdminSession, state: State
) -> Plan:
    """Make a plan or replace it; its tenants have the new terms at once."""
    plan = Plan.of(plan_terms(await service.put_plan(name, body)))
    await state.auth.commit_change(session)
    return plan


@router.post("/tenants", status_code=201, dependencies=[Depends(require_role("operator"))])
async def create_tenant(body: TenantCreate, service: AdminTenants) -> Tenant:
    return Tenant.model_validate(await service.create_tenant(body))


@router.get("/tenants", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_tenants(session: AdminSession, after: After = None, limit: Limit = 20) -> TenantPage:
    """Newest first."""
    rows = await repository.list_tenants(session, after=after, limit=limit)
    return TenantPage.of([Tenant.model_validate(row) for row in rows], limit)


@router.get("/tenants/{tenant_id}", dependencies=[Depends(require_role(*MONEY_READERS))])
async def get_tenant(tenant_id: str, service: AdminTenants) -> Tenant:
    return Tenant.model_validate(await service.tenant(tenant_id))


@router.patch("/tenants/{tenant_id}", dependencies=[Depends(require_role("operator"))])
async def change_tenant(
    tenant_id: str, body: TenantChange, service: AdminTenants, session: AdminSession, state: State
) -> Tenant:
    """Rename, change the plan, suspend or activate; in force for the next request. Suspending ends
    requests in flight, billed to there."""
    tenant = Tenant.model_validate(await service.change_tenant(tenant_id, body))
    await state.auth.commit_change(session)
    if tenant.status == "suspended":
        await state.flights.tenant_suspended(tenant_id)
    return tenant
