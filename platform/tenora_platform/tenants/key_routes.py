"""HTTP routes of tenants' API keys: the tenant's own, and the same for the operator."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit, Rotation
from tenora_platform.state import AdminSession, AppState, State, TenantSession
from tenora_platform.tenants.key_listing import KeySort, KeyState, Wanted
from tenora_platform.tenants.key_service import ApiKeyService, EndedKeys
from tenora_platform.tenants.repository import require_not_deleted
from tenora_platform.tenants.schemas import (
    ApiKey,
    ApiKeyChange,
    ApiKeyCreate,
    ApiKeyPage,
    NewApiKey,
    RevokedApiKey,
)
from tenora_platform.tenants.service import TenantService

router = APIRouter(route_class=EdgeRoute)
admin = APIRouter(
    prefix="/admin/v1/tenants/{tenant_id}/api_keys", tags=["admin"], route_class=EdgeRoute
)
own = APIRouter(prefix="/v1/api_keys", tags=["api_keys"], route_class=EdgeRoute)


async def wanted_keys(
    asked: Asked = None,
    state: KeyState = None,
    sort: KeySort = "-created",
    after: After = None,
    limit: Limit = 20,
) -> Wanted:
    return Wanted(asked, state, sort, after, limit)


WantedKeys = Annotated[Wanted, Depends(wanted_keys)]
KeysTenant = Annotated[TenantContext, Depends(require_scope("keys"))]
MAY_READ = [Depends(require_role(*READERS))]
MAY_WRITE = [Depends(require_role("operator"))]


RevokeKeys = Annotated[
    bool,
    Query(
        description="With `overlap_s` 0: whether to revoke the keys that it created, and to "
        "disable the webhooks that it and they created"
    ),
]
DisableWebhooks = Annotated[
    bool, Query(description="Whether to disable the webhooks that it and they created")
]


async def tenants_keys(
    tenant_id: str, session: AdminSession, state: State, admin: CurrentAdmin
) -> ApiKeyService:
    """Raises NotFoundError for a tenant that is none."""
    await TenantService(session, audit=state.audit, actor=admin.actor).tenant(tenant_id)
    return ApiKeyService(
        session, tenant_id=tenant_id, audit=state.audit, secret=state.secret, actor=admin.actor
    )


async def own_keys(session: TenantSession, state: State, tenant: KeysTenant) -> ApiKeyService:
    return ApiKeyService(
        session,
        tenant_id=tenant.tenant_id,
        audit=state.audit,
        secret=state.secret,
        actor=tenant.actor,
        asker_id=tenant.key_id if tenant.role is None else None,
    )


# Function scope, as the sessions have.
TenantsKeys = Annotated[ApiKeyService, Depends(tenants_keys, scope="function")]
OwnKeys = Annotated[ApiKeyService, Depends(own_keys, scope="function")]


@admin.post("", status_code=201, dependencies=MAY_WRITE)
async def create_tenant_key(
    tenant_id: str, keys: TenantsKeys, session: AdminSession, body: ApiKeyCreate | None = None
) -> NewApiKey:
    """A key for a tenant. Its secret is in this answer and nowhere else."""
    await require_not_deleted(session, tenant_id)
    return await keys.create(body or ApiKeyCreate())


@admin.get("", dependencies=MAY_READ)
async def list_tenant_keys(keys: TenantsKeys, wanted: WantedKeys) -> ApiKeyPage:
    return await keys.page(wanted)


@admin.get("/{key_id}", dependencies=MAY_READ)
async def get_tenant_key(key_id: str, keys: TenantsKeys) -> ApiKey:
    return await keys.get(key_id)


@admin.patch("/{key_id}", dependencies=MAY_WRITE)
async def change_tenant_key(
    key_id: str, body: ApiKeyChange, keys: TenantsKeys, session: AdminSession, state: State
) -> ApiKey:
    """As PATCH /v1/api_keys/{key_id}, without being bounded by another key."""
    return await _changed(state, session, keys.tenant_id, *await keys.change(key_id, body))


@admin.post("/{key_id}/rotate", dependencies=MAY_WRITE)
async def rotate_tenant_key(
    key_id: str,
    keys: TenantsKeys,
    tenant_id: str,
    session: AdminSession,
    state: State,
    body: Rotation | None = None,
    revoke_keys: RevokeKeys = True,
) -> NewApiKey:
    """As POST /v1/api_keys/{key_id}/rotate."""
    await require_not_deleted(session, tenant_id)
    rotated = await keys.rotate(key_id, _overlap_s(body), revoke_keys=revoke_keys)
    return await _rotated(state, session, keys.tenant_id, *rotated)


@admin.delete("/{key_id}", dependencies=MAY_WRITE)
async def revoke_tenant_key(
    key_id: str,
    keys: TenantsKeys,
    session: AdminSession,
    state: State,
    disable_webhooks: DisableWebhooks = True,
) -> RevokedApiKey:
    """As DELETE /v1/api_keys/{key_id}."""
    ended = await keys.revoke(key_id, disable_webhooks=disable_webhooks)
    return await _revoked(state, session, keys.tenant_id, ended)


@own.post("", status_code=201)
async def create_key(keys: OwnKeys, body: ApiKeyCreate | None = None) -> NewApiKey:
    """Create another key of this tenant. It can have no more rights than the key that creates it:
    absent fields are copied from that key, and asking for more is 400 `beyond_own_key`. What it
    uses also counts against that key's limits, and it ends with that key. Its secret is only in
    this answer."""
    return await keys.create(body or ApiKeyCreate())


@own.get("")
async def list_keys(keys: OwnKeys, wanted: WantedKeys) -> ApiKeyPage:
    """List this tenant's keys without their secrets; `q` searches names, prefixes and ids."""
    return await keys.page(wanted)


@own.get("/{key_id}")
async def get_key(key_id: str, keys: OwnKeys) -> ApiKey:
    return await keys.get(key_id)


@own.patch("/{key_id}")
async def change_key(
    key_id: str, body: ApiKeyChange, keys: OwnKeys, session: TenantSession, state: State
) -> ApiKey:
    """Change a key, effective with the next request. Absent fields, single limits included, stay as
    they are; null removes a limit. No value may exceed what the key that sends the request has.
    Scopes and models taken from a key are taken from the keys it created too."""
    return await _changed(state, session, keys.tenant_id, *await keys.change(key_id, body))


@own.post("/{key_id}/rotate")
async def rotate_key(
    key_id: str,
    keys: OwnKeys,
    session: TenantSession,
    state: State,
    body: Rotation | None = None,
    revoke_keys: RevokeKeys = True,
) -> NewApiKey:
    """Give the key a new secret, effective now; it is only in this answer. The previous secret
    stays valid for `overlap_s` (one day by default); with 0 it ends at once, with its requests in
    flight, the keys that the key created, and their webhooks and its own: whoever had the secret
    may have them. The key's id, limits and usage do not change."""
    rotated = await keys.rotate(key_id, _overlap_s(body), revoke_keys=revoke_keys)
    return await _rotated(state, session, keys.tenant_id, *rotated)


@own.delete("/{key_id}")
async def revoke_key(
    key_id: str,
    keys: OwnKeys,
    session: TenantSession,
    state: State,
    disable_webhooks: DisableWebhooks = True,
) -> RevokedApiKey:
    """Revoke a key (also the one that sends the request) with all keys that it created, and end
    their requests in flight; they are billed for what was generated. Webhook endpoints whose
    address one of them gave are disabled."""
    ended = await keys.revoke(key_id, disable_webhooks=disable_webhooks)
    return await _revoked(state, session, keys.tenant_id, ended)


def _overlap_s(body: Rotation | None) -> int:
    return (body or Rotation()).overlap_s


async def _changed(
    state: AppState,
    session: AdminSession | TenantSession,
    tenant_id: str,
    key: ApiKey,
    ended: list[str],
) -> ApiKey:
    await state.auth.commit_change(session, tenant_id)
    for each in ended:
        await state.flights.key_revoked(each)
    return key


async def _rotated(
    state: AppState,
    session: AdminSession | TenantSession,
    tenant_id: str,
    key: NewApiKey,
    secrets: list[str],
    keys: list[str],
) -> NewApiKey:
    await state.auth.commit_change(session, tenant_id)
    for prefix in secrets:
        await state.flights.secret_ended(prefix)
    for each in keys:
        await state.flights.key_revoked(each)
    return key


async def _revoked(
    state: AppState, session: AdminSession | TenantSession, tenant_id: str, ended: EndedKeys
) -> RevokedApiKey:
    await state.auth.commit_change(session, tenant_id)
    for each in ended.ids:
        await state.flights.key_revoked(each)
    return RevokedApiKey(
        id=ended.ids[0], keys=len(ended.ids), webhook_endpoints=ended.webhook_endpoints
    )


router.include_router(admin)
router.include_router(own)
