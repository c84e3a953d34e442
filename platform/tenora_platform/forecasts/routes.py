"""HTTP routes of forecasts: what this month comes to, for a tenant and for the operator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.contexts import plan_terms
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.forecasts.schemas import Forecast
from tenora_platform.forecasts.service import forecast
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.state import AdminSession, TenantSession
from tenora_platform.tenants.repository import get_plan, get_tenant

router = APIRouter(tags=["usage"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]


@router.get("/v1/forecast")
async def get_forecast(session: TenantSession, tenant: UsageTenant) -> Forecast:
    """Get what this month has cost so far and what it is projected to cost, beside the plan's
    budget."""
    return await forecast(session, tenant.tenant_id, tenant.plan, datetime.now(UTC))


@router.get("/admin/v1/forecast", dependencies=[Depends(require_role(*MONEY_READERS))])
async def get_any_forecast(
    session: AdminSession,
    tenant: Annotated[
        str | None,
        Query(max_length=256, description="Only the tenant with this id, with its budget"),
    ] = None,
) -> Forecast:
    """As /v1/forecast, for one tenant or for all of them together."""
    now = datetime.now(UTC)
    if tenant is None:
        return await forecast(session, None, None, now)
    row = await get_tenant(session, tenant)
    plan = None if row is None else await get_plan(session, row.plan)
    if plan is None:
        raise BadRequestError(
            f"There is no tenant with the id {tenant[:80]!r}. Give a tenant's id, or leave "
            "tenant out for all tenants.",
            param="tenant",
            code="unknown_tenant",
        )
    return await forecast(session, tenant, plan_terms(plan), now)
