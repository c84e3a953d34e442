"""HTTP routes of events: a tenant's own, and the operator's view of one tenant's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.events import repository
from tenora_platform.events.schemas import Event, EventPage
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.repository import get_tenant

router = APIRouter(tags=["events"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
Type = Annotated[str | None, Query(description="Only events of this type, such as budget.soft")]


@router.get("/v1/events")
async def list_events(
    state: State,
    tenant: UsageTenant,
    type: Type = None,
    after: After = None,
    limit: Limit = 20,
) -> EventPage:
    """List what happened, newest first: `adapter.active`, `budget.soft`, `invoice.final`, and so
    on. Webhooks deliver the same events."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        rows = await repository.list_events(
            session, tenant.tenant_id, type=type, after=after, limit=limit
        )
    return EventPage.of([Event.model_validate(row) for row in rows], limit)


@router.get(
    "/admin/v1/tenants/{tenant_id}/events", dependencies=[Depends(require_role(*MONEY_READERS))]
)
async def list_tenant_events(
    tenant_id: str,
    session: AdminSession,
    type: Type = None,
    after: After = None,
    limit: Limit = 20,
) -> EventPage:
    """List a tenant's events, newest first."""
    if await get_tenant(session, tenant_id) is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    rows = await repository.list_events(session, tenant_id, type=type, after=after, limit=limit)
    return EventPage.of([Event.model_validate(row) for row in rows], limit)
