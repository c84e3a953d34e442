"""HTTP routes of deleting a tenant and of taking that back, the operator's."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.erasure.service import Deletions
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.schemas import Tenant

router = APIRouter(
    prefix="/admin/v1/tenants/{tenant_id}",
    tags=["admin"],
    route_class=EdgeRoute,
    dependencies=[Depends(require_role("operator"))],
)
GraceDays = Annotated[
    int | None,
    Query(
        ge=0,
        le=365,
        description="Days until it is erased; 0: now. Absent: TENORA_TENANT_GRACE_DAYS",
    ),
]


async def deletions(session: AdminSession, state: State, admin: CurrentAdmin) -> Deletions:
    return Deletions(session, audit=state.audit, actor=admin.actor)


# Function scope, as the sessions have.
Deleting = Annotated[Deletions, Depends(deletions, scope="function")]


@router.delete("")
async def delete_tenant(
    tenant_id: str,
    service: Deleting,
    session: AdminSession,
    state: State,
    grace_days: GraceDays = None,
) -> Tenant:
    """Suspend a tenant at once, with its requests in flight, and erase it after the grace period:
    its adapters, keys, people, stored contents and cached KV. Until then it can be restored. Books
    and invoices stay, under a pseudonym."""
    days = state.settings.tenant_grace_days if grace_days is None else grace_days
    tenant = Tenant.model_validate(await service.delete(tenant_id, timedelta(days=days)))
    await state.auth.commit_change(session, tenant_id)
    await state.flights.tenant_suspended(tenant_id)
    return tenant


@router.post("/restore")
async def restore_tenant(
    tenant_id: str, service: Deleting, session: AdminSession, state: State
) -> Tenant:
    """Take a deletion back before the grace period is over; the tenant is as it was before."""
    tenant = Tenant.model_validate(await service.restore(tenant_id))
    await state.auth.commit_change(session, tenant_id)
    return tenant
