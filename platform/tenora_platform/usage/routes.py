"""HTTP routes of usage and costs, for a tenant and for the operator."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.budgets.true_up import last_corrections
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.large_answers import large_answer
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.reconciliation.repository import last_done, last_round
from tenora_platform.reconciliation.schemas import CanaryRound, Run
from tenora_platform.schemas import Internal
from tenora_platform.state import AdminSession, State
from tenora_platform.times import QueryTime
from tenora_platform.usage.leftovers import reconciliation
from tenora_platform.usage.schemas import Bucket, CostPage, Reconciliation, UsagePage
from tenora_platform.usage.service import (
    ADMIN_GROUPS,
    TENANT_GROUPS,
    find_costs,
    find_usage,
    make_query,
)
from tenora_platform.usage.service import (
    Query as UsageQuery,
)
from tenora_platform.usage.tally import Shape, TopBy

router = APIRouter(tags=["usage"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]

Start = Annotated[
    QueryTime | None,
    Query(description="Start of the period; default: the first day of the current month"),
]
End = Annotated[QueryTime | None, Query(description="End of the period (exclusive); default: now")]
Buckets = Annotated[Bucket, Query(description="Length of a time bucket, in UTC")]
GroupBy = Annotated[
    str | None,
    Query(
        description=(
            "Group by any of adapter, adapter_version, api_key, model, tier, kind (comma-separated)"
        )
    ),
]
BucketLimit = Annotated[int, Query(ge=1, le=744, description="Maximum number of buckets to return")]
Page = Annotated[str | None, Query(description="`next_page` of the previous answer")]


async def tenant_query(
    tenant: UsageTenant,
    start: Start = None,
    end: End = None,
    bucket: Buckets = "1d",
    group_by: GroupBy = None,
    limit: BucketLimit = 31,
    page: Page = None,
) -> UsageQuery:
    return make_query(
        start=start,
        end=end,
        bucket=bucket,
        group_by=group_by,
        limit=limit,
        page=page,
        groups=TENANT_GROUPS,
        tenant_id=tenant.tenant_id,
    )


async def admin_query(
    start: Start = None,
    end: End = None,
    bucket: Buckets = "1d",
    group_by: GroupBy = None,
    tenant: Annotated[str | None, Query(description="Only the tenant with this id")] = None,
    internal: Internal = False,
    limit: BucketLimit = 31,
    page: Page = None,
) -> UsageQuery:
    """`group_by` may name `tenant` too."""
    return make_query(
        start=start,
        end=end,
        bucket=bucket,
        group_by=group_by,
        limit=limit,
        page=page,
        groups=ADMIN_GROUPS,
        tenant_id=tenant,
        internal=internal,
    )


async def shape_of(
    include: Annotated[
        Literal["costs"] | None, Query(description="`costs`: include the cost of each result")
    ] = None,
    top: Annotated[
        int | None,
        Query(
            ge=1, le=100, description="Return only this many groups, and all others as one result"
        ),
    ] = None,
    top_by: Annotated[TopBy, Query(description="What `top` ranks groups by")] = "tokens",
) -> Shape:
    if top_by == "cost" and include != "costs":
        raise BadRequestError(
            "top_by=cost needs include=costs.", param="top_by", code="invalid_value"
        )
    return Shape(include == "costs", top, top_by)


UsageShape = Annotated[Shape, Depends(shape_of)]
TenantQuery = Annotated[UsageQuery, Depends(tenant_query)]
AdminQuery = Annotated[UsageQuery, Depends(admin_query)]


@router.get("/v1/usage", response_model=UsagePage)
async def get_usage(
    state: State, tenant: UsageTenant, query: TenantQuery, shape: UsageShape
) -> Response:
    """Get the tokens of finished sequences by time bucket, cached and uncached prompt tokens
    separately. A page has at most 10,000 results, and so may have fewer buckets than `limit`."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        found = await find_usage(session, query, shape)
    return await large_answer(state.large_answers, tenant.tenant_id, found.page)


@router.get("/v1/costs", response_model=CostPage)
async def get_costs(state: State, tenant: UsageTenant, query: TenantQuery) -> Response:
    """Get the cost of usage, as exact decimal strings. Events without a price are counted
    separately. A page has at most 10,000 results, and so may have fewer buckets than `limit`."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        found = await find_costs(session, query)
    return await large_answer(state.large_answers, tenant.tenant_id, found.page)


@router.get(
    "/admin/v1/usage",
    response_model=UsagePage,
    dependencies=[Depends(require_role(*MONEY_READERS))],
)
async def get_all_usage(state: State, query: AdminQuery, shape: UsageShape) -> Response:
    """As /v1/usage, over all tenants; `group_by` may also contain `tenant`."""
    async with state.db.admin_session() as session:
        found = await find_usage(session, query, shape)
    return await large_answer(state.large_answers, None, found.page)


@router.get("/admin/v1/reconciliation", dependencies=[Depends(require_role(*MONEY_READERS))])
async def get_reconciliation(session: AdminSession, state: State) -> Reconciliation:
    """Get usage that is not billed: events without a price, and records that were set aside (both
    are retried from time to time). Also: budget counters that differed from the books; whether the
    layers of the books agreed at the last reconciliation (hourly for what has changed, daily for
    everything); and the results of the synthetic checks."""
    found = await reconciliation(session)
    found.budget_corrections = await last_corrections(state.redis, state.seal)
    run, round_ = await last_done(session), await last_round(session)
    found.last_run = Run.of(run) if run is not None else None
    found.agrees = found.last_run.agrees if found.last_run is not None else None
    found.canary = CanaryRound.of(round_) if round_ is not None else None
    return found


@router.get(
    "/admin/v1/costs",
    response_model=CostPage,
    dependencies=[Depends(require_role(*MONEY_READERS))],
)
async def get_all_costs(state: State, query: AdminQuery) -> Response:
    """As /v1/costs, over all tenants; `group_by` may also contain `tenant`."""
    async with state.db.admin_session() as session:
        found = await find_costs(session, query)
    return await large_answer(state.large_answers, None, found.page)
