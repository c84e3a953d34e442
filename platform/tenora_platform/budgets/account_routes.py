"""HTTP routes of what a tenant sees and says of its own money: its account budget and its credit.
The operator reads the same."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.budgets import account, repository
from tenora_platform.budgets.schemas import (
    AccountBudget,
    AccountBudgetBody,
    OwnGrant,
    OwnGrantPage,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import AdminSession, State, TenantSession
from tenora_platform.tenants.repository import get_tenant

router = APIRouter(tags=["credits"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
BillingTenant = Annotated[TenantContext, Depends(require_scope("keys", right="billing"))]


@router.get("/v1/budget")
async def get_budget(session: TenantSession, tenant: UsageTenant) -> AccountBudget:
    """Get the account's monthly budget, what is spent of it, and the alerts of this month."""
    return await account.view(session, tenant.tenant_id)


@router.put("/v1/budget")
async def put_budget(
    body: AccountBudgetBody, session: TenantSession, state: State, tenant: BillingTenant
) -> AccountBudget:
    """Set the account's monthly budget, for all keys and people together, effective with the next
    request. Thresholds that are reached already are told now. Events are told by GET /v1/events
    and webhooks, once for each threshold, month and amount. A `hard` budget refuses requests that
    would pass it: 429 `insufficient_quota` with `error.budget` `account_month`. It needs prices in
    one currency."""
    found = await account.put(session, state.audit, tenant.actor, tenant.tenant_id, body)
    await state.auth.commit_change(session, tenant.tenant_id)
    return found


@router.delete("/v1/budget")
async def delete_budget(session: TenantSession, state: State, tenant: BillingTenant) -> Deleted:
    """Remove the account's budget. Those of the plan and of keys stay."""
    await account.drop(session, state.audit, tenant.actor, tenant.tenant_id)
    await state.auth.commit_change(session, tenant.tenant_id)
    return Deleted(id=tenant.tenant_id, object="account_budget")


@router.get("/v1/credits")
async def list_own_credits(
    session: TenantSession, tenant: UsageTenant, after: After = None, limit: Limit = 20
) -> OwnGrantPage:
    """List the account's credit, newest first: what was granted or bought, and until when it can be
    spent."""
    rows = await repository.list_grants(session, tenant.tenant_id, after=after, limit=limit)
    return OwnGrantPage.of([OwnGrant.model_validate(row) for row in rows], limit)


@router.get(
    "/admin/v1/tenants/{tenant_id}/budget", dependencies=[Depends(require_role(*MONEY_READERS))]
)
async def get_tenant_budget(tenant_id: str, session: AdminSession) -> AccountBudget:
    """Get a tenant's account budget, which the tenant sets itself."""
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    return await account.view(session, tenant_id)
