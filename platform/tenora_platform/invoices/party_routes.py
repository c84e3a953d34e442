"""HTTP routes of the operator's for whom invoices are from and for."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.invoices import repository
from tenora_platform.invoices.parties import (
    change_settings,
    profile_view,
    put_profile,
    settings_view,
)
from tenora_platform.invoices.schemas import (
    BillingProfile,
    BillingSettings,
    FullProfileBody,
    SettingsBody,
)
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.repository import get_tenant, require_not_erased

router = APIRouter(prefix="/admin/v1", tags=["invoices"], route_class=EdgeRoute)
Readers = Depends(require_role(*MONEY_READERS))
Biller = Depends(require_role("billing"))


@router.get("/billing_settings", dependencies=[Readers])
async def get_billing_settings(session: AdminSession) -> BillingSettings:
    """Get who sends invoices, and when."""
    return settings_view(await repository.settings(session))


@router.patch("/billing_settings", dependencies=[Biller])
async def change_billing_settings(
    body: SettingsBody, session: AdminSession, state: State, admin: CurrentAdmin
) -> BillingSettings:
    """Change it, effective for invoices that become final from now on."""
    changes = body.model_dump(exclude_unset=True)
    for name, value in changes.items():
        if value is None:
            raise BadRequestError(f"{name} cannot be null.", param=name)
    return await change_settings(session, state.audit, admin.actor, changes)


@router.get("/tenants/{tenant_id}/billing_profile", dependencies=[Readers])
async def get_tenant_billing_profile(tenant_id: str, session: AdminSession) -> BillingProfile:
    """Get the recipient of a tenant's invoices, and their tax."""
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    return profile_view(tenant_id, await repository.profile(session, tenant_id))


@router.put("/tenants/{tenant_id}/billing_profile", dependencies=[Biller])
async def put_tenant_billing_profile(
    tenant_id: str,
    body: FullProfileBody,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
) -> BillingProfile:
    """Replace it, effective with the next invoices."""
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    await require_not_erased(session, tenant_id)
    return await put_profile(session, state.audit, admin.actor, tenant_id, body.model_dump())
