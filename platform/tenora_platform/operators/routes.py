"""HTTP routes of admin keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import READERS
from tenora_platform.operators.schemas import (
    AdminKeyCreate,
    AdminKeyPage,
    NewAdminKey,
)
from tenora_platform.operators.service import AdminKeyService
from tenora_platform.schemas import After, Deleted, Limit, Rotation
from tenora_platform.state import AdminSession, State

router = APIRouter(prefix="/admin/v1/admin_keys", tags=["admin"], route_class=EdgeRoute)


async def service_of(session: AdminSession, state: State, admin: CurrentAdmin) -> AdminKeyService:
    return AdminKeyService(
        session, keys=state.auth.admins, audit=state.audit, secret=state.secret, admin=admin
    )


Service = Annotated[AdminKeyService, Depends(service_of, scope="function")]


@router.get("", dependencies=[Depends(require_role(*READERS))])
async def list_admin_keys(service: Service, after: After = None, limit: Limit = 20) -> AdminKeyPage:
    """Every admin key, without the secrets, newest first; last the one the server is set up with,
    which cannot be ended here."""
    return await service.page(after, limit)


@router.post("", status_code=201, dependencies=[Depends(require_role("owner"))])
async def create_admin_key(body: AdminKeyCreate, service: Service) -> NewAdminKey:
    """A key of one role. Its secret is in this answer and nowhere else."""
    return await service.create(body)


@router.post("/{admin_key_id}/rotate", dependencies=[Depends(require_role("owner"))])
async def rotate_admin_key(
    admin_key_id: str, service: Service, body: Rotation | None = None
) -> NewAdminKey:
    """A new secret for the key, now; the one so far stays good for `overlap_s`, a day if not said,
    and at 0 not at all."""
    return await service.rotate(admin_key_id, (body or Rotation()).overlap_s)


@router.delete("/{admin_key_id}", dependencies=[Depends(require_role("owner"))])
async def revoke_admin_key(admin_key_id: str, service: Service) -> Deleted:
    """End a key, at once and everywhere. The last owner's stays."""
    await service.revoke(admin_key_id)
    return Deleted(id=admin_key_id, object="admin_key")
