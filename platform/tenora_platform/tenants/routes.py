"""HTTP routes of plans, tenants and API keys: the operator's and the tenant's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from tenora_platform.auth import (
    CurrentAdmin,
    TenantContext,
    plan_terms,
    require_role,
    require_scope,
)
from tenora_platform.operators.roles import MONEY_READERS, READERS
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import AdminSession, AppState, State, TenantSession
from tenora_platform.tenants import repository
from tenora_platform.tenants.schemas import (
    ApiKey,
    ApiKeyCreate,
    ApiKeyPage,
    NewApiKey,
    Plan,
    PlanBody,
    PlanList,
    Tenant,
    TenantChange,
    TenantCreate,
    TenantPage,
)
from tenora_platform.tenants.service import TenantService

router = APIRouter()
admin = APIRouter(prefix="/admin/v1", tags=["admin"])
own = APIRouter(prefix="/v1/api_keys", tags=["api_keys"])

PlanName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
KeysTenant = Annotated[TenantContext, Depends(require_scope("keys"))]


def admin_service(session: AdminSession, state: State, admin: CurrentAdmin) -> TenantService:
    return TenantService(session, audit=state.audit, secret=state.secret, actor=admin.actor)


def own_service(session: TenantSession, state: State, tenant: KeysTenant) -> TenantService:
    actor = f"api_key:{tenant.key_id}"
    return TenantService(session, audit=state.audit, secret=state.secret, actor=actor)


# Function scope, as the sessions have.
AdminTenants = Annotated[TenantService, Depends(admin_service, scope="function")]
OwnKeys = Annotated[TenantService, Depends(own_service, scope="function")]


async def _forget_keys(state: AppState, session: AdminSession | TenantSession) -> None:
    """Commit now, then forget: a look-up between the two would remember the old row again."""
    await session.commit()
    await state.auth.invalidate()


@admin.get("/plans", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_plans(session: AdminSession) -> PlanList:
    """Every plan, by name."""
    plans = await repository.list_plans(session)
    return PlanList(data=[Plan.of(plan_terms(plan)) for plan in plans])


@admin.put("/plans/{name}", dependencies=[Depends(require_role("operator"))])
async def put_plan(
    name: PlanName, body: PlanBody, service: AdminTenants, session: AdminSession, state: State
) -> Plan:
    """Make a plan or replace it; its tenants have the new terms at once."""
    plan = Plan.of(plan_terms(await service.put_plan(name, body)))
    await _forget_keys(state, session)
    return plan


@admin.post("/tenants", status_code=201, dependencies=[Depends(require_role("operator"))])
async def create_tenant(body: TenantCreate, service: AdminTenants) -> Tenant:
    return Tenant.model_validate(await service.create_tenant(body))


@admin.get("/tenants", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_tenants(session: AdminSession, after: After = None, limit: Limit = 20) -> TenantPage:
    """Newest first."""
    rows = await repository.list_tenants(session, after=after, limit=limit)
    return TenantPage.of([Tenant.model_validate(row) for row in rows], limit)


@admin.get("/tenants/{tenant_id}", dependencies=[Depends(require_role(*MONEY_READERS))])
async def get_tenant(tenant_id: str, service: AdminTenants) -> Tenant:
    return Tenant.model_validate(await service.tenant(tenant_id))


@admin.patch("/tenants/{tenant_id}", dependencies=[Depends(require_role("operator"))])
async def change_tenant(
    tenant_id: str, body: TenantChange, service: AdminTenants, session: AdminSession, state: State
) -> Tenant:
    """Rename, change the plan, suspend or activate; in force for the next request. Suspending ends
    requests in flight, billed to there."""
    tenant = Tenant.model_validate(await service.change_tenant(tenant_id, body))
    await _forget_keys(state, session)
    if tenant.status == "suspended":
        await state.flights.tenant_suspended(tenant_id)
    return tenant


@admin.post(
    "/tenants/{tenant_id}/api_keys",
    status_code=201,
    dependencies=[Depends(require_role("operator"))],
)
async def create_tenant_key(
    tenant_id: str, service: AdminTenants, body: ApiKeyCreate | None = None
) -> NewApiKey:
    """A key for a tenant. Its secret is in this answer and nowhere else."""
    await service.tenant(tenant_id)
    return await service.create_key(tenant_id, body or ApiKeyCreate())


@admin.get("/tenants/{tenant_id}/api_keys", dependencies=[Depends(require_role(*READERS))])
async def list_tenant_keys(
    tenant_id: str,
    service: AdminTenants,
    session: AdminSession,
    after: After = None,
    limit: Limit = 20,
) -> ApiKeyPage:
    await service.tenant(tenant_id)
    rows = await repository.list_keys(session, tenant_id, after=after, limit=limit)
    return ApiKeyPage.of([ApiKey.model_validate(row) for row in rows], limit)


@admin.delete(
    "/tenants/{tenant_id}/api_keys/{key_id}", dependencies=[Depends(require_role("operator"))]
)
async def revoke_tenant_key(
    tenant_id: str, key_id: str, service: AdminTenants, session: AdminSession, state: State
) -> Deleted:
    await service.revoke_key(tenant_id, key_id)
    await _forget_keys(state, session)
    await state.flights.key_revoked(key_id)
    return Deleted(id=key_id, object="api_key")


@own.post("", status_code=201)
async def create_key(
    service: OwnKeys, tenant: KeysTenant, body: ApiKeyCreate | None = None
) -> NewApiKey:
    """Another key of this tenant. Its secret is in this answer and nowhere else."""
    return await service.create_key(tenant.tenant_id, body or ApiKeyCreate(), within=tenant.scopes)


@own.get("")
async def list_keys(
    session: TenantSession, tenant: KeysTenant, after: After = None, limit: Limit = 20
) -> ApiKeyPage:
    """This tenant's keys, without their secrets."""
    rows = await repository.list_keys(session, tenant.tenant_id, after=after, limit=limit)
    return ApiKeyPage.of([ApiKey.model_validate(row) for row in rows], limit)


@own.delete("/{key_id}")
async def revoke_key(
    key_id: str, service: OwnKeys, tenant: KeysTenant, session: TenantSession, state: State
) -> Deleted:
    """End a key, also the one that asks, and its requests in flight, billed to there."""
    await service.revoke_key(tenant.tenant_id, key_id)
    await _forget_keys(state, session)
    await state.flights.key_revoked(key_id)
    return Deleted(id=key_id, object="api_key")


router.include_router(admin)
router.include_router(own)
