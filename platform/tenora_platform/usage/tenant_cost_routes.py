"""HTTP routes of what each tenant costs in a month, the operator's: days, forecast and budget. What
all of them cost together is in `forecasts` and `usage.routes`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.invoices.period import PeriodName, first_day
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State
from tenora_platform.tenants.ranks import Days, month_days, this_month
from tenora_platform.tenants.routes import ChosenTenants
from tenora_platform.usage.tenant_costs import TenantCostsPage, costs_page

router = APIRouter(
    prefix="/admin/v1/costs",
    tags=["usage"],
    route_class=EdgeRoute,
    dependencies=[Depends(require_role(*MONEY_READERS))],
)


async def asked_month(
    month: Annotated[
        PeriodName | None,
        Query(description="A month such as 2026-11, in UTC; default: the current one"),
    ] = None,
) -> Days:
    now = datetime.now(UTC)
    return this_month(now) if month is None else month_days(first_day(month), now)


Month = Annotated[Days, Depends(asked_month)]


@router.get("/tenants")
async def list_tenant_costs(
    session: AdminSession,
    state: State,
    days: Month,
    chosen: ChosenTenants,
    tenant: Annotated[str | None, Query(description="Only the tenant with this id")] = None,
    after: After = None,
    limit: Limit = 20,
) -> TenantCostsPage:
    """List what each tenant costs in a month: by currency and day, with a forecast and the budget
    of its plan. The sort order `spend` uses the requested month."""
    of = replace(chosen, tenant_id=tenant)
    return await costs_page(session, state.ranks, of, days, after=after, limit=limit)
