"""HTTP routes of waits: who waited because of whom, whether shares were kept, and what one request
waited for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.large_answers import large_answer
from tenora_platform.operators.roles import READERS
from tenora_platform.state import AdminSession, State, TenantSession
from tenora_platform.times import QueryTime
from tenora_platform.waits.schemas import Fairness, NamedRequestWaits, RequestWaits, WaitList
from tenora_platform.waits.service import (
    checked_groups,
    checked_range,
    fairness,
    named_request_waits,
    request_waits,
    wait_list,
)

router = APIRouter(tags=["waits"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
OPERATORS = [Depends(require_role(*READERS))]

Start = Annotated[
    QueryTime | None, Query(description="Start of the period; default: an hour before its end")
]
End = Annotated[QueryTime | None, Query(description="End of the period (exclusive); default: now")]


@router.get("/admin/v1/waits", response_model=WaitList, dependencies=OPERATORS)
async def list_waits(
    state: State,
    start: Start = None,
    end: End = None,
    group_by: Annotated[
        str | None,
        Query(
            max_length=100,
            description="Group by any of tenant, class, cause, other (comma-separated). Default: "
            "tenant,cause,other",
        ),
    ] = None,
) -> Response:
    """List who waited, and because of whom or what, in seconds."""
    groups = checked_groups(group_by)
    range_ = checked_range(start, end)
    async with state.db.admin_session() as session:
        made = await wait_list(session, *range_, groups)
    return await large_answer(state.large_answers, None, made)


@router.get("/admin/v1/fairness", response_model=Fairness, dependencies=OPERATORS)
async def get_fairness(state: State, start: Start = None, end: End = None) -> Response:
    """Get service against weight by class and tenant, and the service gap beside its proven
    bound."""
    range_ = checked_range(start, end)
    async with state.db.admin_session() as session:
        made = await fairness(session, *range_)
    return await large_answer(state.large_answers, None, made)


@router.get("/v1/requests/{request_id}/waits")
async def get_request_waits(
    request_id: str, session: TenantSession, tenant: UsageTenant
) -> RequestWaits:
    """Get what a request waited for, by the answer's `id` or the `x-request-id`."""
    return await request_waits(session, request_id, tenant.tenant_id)


@router.get("/admin/v1/requests/{request_id}/waits", dependencies=OPERATORS)
async def get_tenants_request_waits(request_id: str, session: AdminSession) -> NamedRequestWaits:
    """As /v1/requests/{id}/waits, for any tenant, including which tenants caused each wait."""
    return await named_request_waits(session, request_id)
