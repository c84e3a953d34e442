"""`GET /v1/me`: any valid key, whatever it may do, learns whose it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import SCOPES, TenantContext, current_caller
from tenora_platform.edge import EdgeRoute
from tenora_platform.me.schemas import Me, MyPerson, MyTenant
from tenora_platform.operators.roles import AdminContext
from tenora_platform.operators.service import AdminKeyService
from tenora_platform.people.tables import PersonRow
from tenora_platform.state import AppState, State
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.schemas import Plan

router = APIRouter(tags=["me"], route_class=EdgeRoute)
CurrentCaller = Annotated[TenantContext | AdminContext, Depends(current_caller)]


@router.get("/v1/me")
async def get_me(caller: CurrentCaller, state: State) -> Me:
    """Get the caller: tenant, key, scopes and plan for a tenant's key; the role for an admin key;
    for a session, the person, or what its key would show."""
    if isinstance(caller, AdminContext):
        return await (_operators_person if caller.is_person else _operator)(caller, state)
    return await (_tenant if caller.role is None else _tenants_person)(caller, state)


async def _operators_person(admin: AdminContext, state: AppState) -> Me:
    async with state.db.admin_session() as session:
        person = await session.get_one(PersonRow, admin.key_id)
    return Me(
        type="person",
        tenant=None,
        key=None,
        person=MyPerson.model_validate(person),
        secret_prefix=None,
        roles=[admin.role],
        scopes=[],
        plan=None,
    )


async def _tenants_person(tenant: TenantContext, state: AppState) -> Me:
    assert tenant.role is not None
    async with state.db.tenant_session(tenant.tenant_id) as session:
        person = await session.get_one(PersonRow, tenant.key_id)
    return Me(
        type="person",
        tenant=MyTenant(id=tenant.tenant_id, name=tenant.name),
        key=None,
        person=MyPerson.model_validate(person),
        secret_prefix=None,
        roles=[tenant.role],
        scopes=[scope for scope in SCOPES if scope in tenant.scopes],
        plan=Plan.of(tenant.plan),
    )


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
        person=None,
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
            actor=tenant.actor,
        )
        key = await keys.get(tenant.key_id)
    return Me(
        type="api_key",
        tenant=MyTenant(id=tenant.tenant_id, name=tenant.name),
        key=key,
        person=None,
        secret_prefix=tenant.key_prefix,
        roles=[],
        scopes=key.scopes,
        plan=Plan.of(tenant.plan),
    )
