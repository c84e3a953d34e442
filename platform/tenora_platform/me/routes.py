"""`GET /v1/me`: any valid key, whatever it may do, learns whose it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import TenantContext, current_caller
from tenora_platform.edge import EdgeRoute
from tenora_platform.me.schemas import Me, MyTenant
from tenora_platform.operators.roles import AdminContext
from tenora_platform.operators.service import AdminKeyService
from tenora_platform.state import AppState, State
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.schemas import Plan

router = APIRouter(tags=["me"], route_class=EdgeRoute)
CurrentCaller = Annotated[TenantContext | AdminContext, Depends(current_caller)]


@router.get("/v1/me")
async def get_me(caller: CurrentCaller, state: State) -> Me:
    """Who am I: tenant, key, scopes and plan of a tenant's key, the role of an admin key."""
    if isinstance(caller, AdminContext):
        return await _operator(caller, state)
    return await _tenant(caller, state)


async def _operator(admin: AdminContext, state: AppState) -> Me:
    async with state.db.admin_session() as session:
        keys = AdminKeyService(
            session, keys=state.auth.admins, audit=state.audit, secret=state.secret, admin=admin
        )
        key = await keys.get(admin.key_id)
    return Me(
        type="admin_key",
        tenant=None,
        key=key,
        secret_prefix=admin.key_prefix,
        roles=[admin.role],
        scopes=[],
        plan=None,
    )


async def _tenant(tenant: TenantContext, state: AppState) -> Me:
    async with state.db.tenant_session(tenant.tenant_id) as session:
        keys = ApiKeyService(
            session,
            tenant_id=tenant.tenant_id,
            audit=state.audit,
            secret=state.secret,
            actor=f"api_key:{tenant.key_id}",
        )
        key = await keys.get(tenant.key_id)
    return Me(
        type="api_key",
        tenant=MyTenant(id=tenant.tenant_id, name=tenant.name),
        key=key,
        secret_prefix=tenant.key_prefix,
        roles=[],
        scopes=key.scopes,
        plan=Plan.of(tenant.plan),
    )
