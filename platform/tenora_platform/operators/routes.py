"""HTTP routes of admin keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import READERS
from tenora_platform.operators.schemas import (
    AdminKeyCreate,
    AdminKeyPage,
    NewAdminKey,
)
from tenora_platform.operators.service import AdminKeyService
from tenora_platform.people.made_by import end_made_by
from tenora_platform.schemas import After, Deleted, Limit, Rotation
from tenora_platform.state import AdminSession, State

router = APIRouter(prefix="/admin/v1/admin_keys", tags=["admin"], route_class=EdgeRoute)


RevokeKeys = Annotated[
    bool, Query(description="Whether to revoke the keys of tenants that it, or its keys, made")
]


async def service_of(session: AdminSession, state: State, admin: CurrentAdmin) -> AdminKeyService:
    return AdminKeyService(
        session, keys=state.auth.admins, audit=state.audit, secret=state.secret, admin=admin
    )


Service = Annotated[AdminKeyService, Depends(service_of, scope="function")]


@router.get("", dependencies=[Depends(require_role(*READERS))])
async def list_admin_keys(service: Service, after: After = None, limit: Limit = 20) -> AdminKeyPage:
    """List all admin keys without their secrets, newest first; last the configured one, which
    cannot be revoked here."""
    return await service.page(after, limit)


@router.post("", status_code=201, dependencies=[Depends(require_role("owner"))])
async def create_admin_key(body: AdminKeyCreate, service: Service) -> NewAdminKey:
    """Create a key with one role. Its secret is only in this answer."""
    return await service.create(body)


@router.post("/{admin_key_id}/rotate", dependencies=[Depends(require_role("owner"))])
async def rotate_admin_key(
    admin_key_id: str,
    service: Service,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    body: Rotation | None = None,
    revoke_keys: RevokeKeys = True,
) -> NewAdminKey:
    """Give the key a new secret, effective now. The previous secret stays valid for `overlap_s`
    (one day by default); with 0 it ends at once, with the admin keys and the tenants' keys that the
    key made: whoever had the secret may have them."""
    overlap_s = (body or Rotation()).overlap_s
    key, makers = await service.rotate(admin_key_id, overlap_s, revoke_keys=revoke_keys)
    await end_made_by(state, session, makers, admin.actor)
    return key


@router.delete("/{admin_key_id}", dependencies=[Depends(require_role("owner"))])
async def revoke_admin_key(
    admin_key_id: str,
    service: Service,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    revoke_keys: RevokeKeys = True,
) -> Deleted:
    """Revoke a key, at once and everywhere, with the admin keys and the tenants' API keys that it
    made. The last owner's key cannot be revoked."""
    makers = await service.revoke(admin_key_id)
    await end_made_by(state, session, makers if revoke_keys else [], admin.actor)
    return Deleted(id=admin_key_id, object="admin_key")
