"""HTTP routes of prepaid credit (admin). Budgets themselves are in plans, keys and /v1/limits."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, Depends
from redis.exceptions import RedisError

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.budgets import repository
from tenora_platform.budgets.grants import Grant, grant_credit
from tenora_platform.budgets.schemas import (
    CreditCreate,
    CreditGrant,
    CreditPage,
    TenantCredit,
    TenantCreditPage,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.repository import get_tenant

router = APIRouter(
    prefix="/admin/v1/tenants/{tenant_id}/credits", tags=["credits"], route_class=EdgeRoute
)
of_all = APIRouter(prefix="/admin/v1/credits", tags=["credits"], route_class=EdgeRoute)


@router.post("", status_code=201, dependencies=[Depends(require_role("billing"))])
async def create_credit(
    tenant_id: str, body: CreditCreate, session: AdminSession, state: State, admin: CurrentAdmin
) -> CreditGrant:
    """Grant prepaid credit, or record credit that was bought. From the first grant on, the tenant
    can spend only its credit, within its plan's budgets; PATCH /admin/v1/tenants/{id} with
    `prepaid: false` ends that."""
    given = Grant(**body.model_dump())
    row = await grant_credit(session, state.ledger, tenant_id, given)
    grant = CreditGrant.model_validate(row)
    await state.audit.append(
        session,
        actor=admin.actor,
        action="credit.grant",
        target=row.id,
        tenant_id=tenant_id,
        after=grant.model_dump(include={"amount", "currency", "kind", "expires_at", "note"}),
    )
    await session.commit()  # before it is looked up again
    await state.auth.invalidate(tenant_id)
    with contextlib.suppress(RedisError):  # the true-up says it, a minute after Redis is back
        await state.budgets.store.forget_credit(tenant_id)
    return grant


@router.get("", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_credits(
    tenant_id: str, session: AdminSession, after: After = None, limit: Limit = 20
) -> CreditPage:
    """List all grants of a tenant, newest first."""
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    rows = await repository.list_grants(session, tenant_id, after=after, limit=limit)
    return CreditPage.of([CreditGrant.model_validate(row) for row in rows], limit)


@of_all.get("", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_all_credits(
    session: AdminSession, q: Asked = None, after: After = None, limit: Limit = 20
) -> TenantCreditPage:
    """List all tenants' grants, newest first. `q` is part of the tenant's name, an id, or the
    note."""
    rows = await repository.page_of_grants(session, asked=q, after=after, limit=limit)
    shown = [
        TenantCredit(**CreditGrant.model_validate(row).model_dump(), tenant_name=name)
        for row, name in rows
    ]
    return TenantCreditPage.of(shown, limit)
