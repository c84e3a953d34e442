"""HTTP routes of requests: searched, and one by one as signed receipts."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BeforeValidator

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.receipts.filters import Filters, FinishReason, Sort, Status
from tenora_platform.receipts.schemas import Receipt, RequestPage
from tenora_platform.receipts.service import Receipts, request_page, requests_named
from tenora_platform.schemas import After, Internal, Limit, plainly_written
from tenora_platform.state import AdminSession, AppState, State, TenantSession
from tenora_platform.times import QueryTime

router = APIRouter(tags=["receipts"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
OPERATORS = [Depends(require_role(*MONEY_READERS))]

Text = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]
Ms = Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False)]
Named = Annotated[
    Text | None,
    Query(
        min_length=1,
        description="An answer's id or an x-request-id; all other filters are then ignored",
    ),
]
Cost = Annotated[
    Decimal, Query(ge=0, max_digits=38, decimal_places=12), BeforeValidator(plainly_written)
]


async def filters_of(
    start: Annotated[
        QueryTime | None, Query(description="Only requests that ended at or after this time")
    ] = None,
    end: Annotated[
        QueryTime | None, Query(description="Only requests that ended before this time")
    ] = None,
    api_key: Annotated[
        Text | None, Query(description="Only requests by the API key with this id")
    ] = None,
    adapter: Annotated[
        Text | None,
        Query(
            description=(
                "Only requests that ran on this adapter, `name` or `name@version`; empty: the "
                "base model"
            )
        ),
    ] = None,
    status: Annotated[
        Status | None,
        Query(description="Only requests with this outcome (that of the worst of their sequences)"),
    ] = None,
    class_: Annotated[
        Text | None, Query(alias="class", description="Only requests served in this class")
    ] = None,
    min_cost: Annotated[Cost | None, Query(description="Minimum cost of the whole request")] = None,
    max_cost: Annotated[Cost | None, Query(description="Maximum cost of the whole request")] = None,
    kind: Annotated[
        Text | None,
        Query(description="Only requests whose id starts with this: chatcmpl, cmpl, ..."),
    ] = None,
    finish_reason: Annotated[
        FinishReason | None,
        Query(description="Only requests with a sequence that has this finish reason"),
    ] = None,
    min_queue_ms: Annotated[
        Ms | None, Query(description="Minimum time in the queue until the request first ran")
    ] = None,
    min_ttft_ms: Annotated[Ms | None, Query(description="Minimum time to the first token")] = None,
    min_duration_ms: Annotated[Ms | None, Query(description="Minimum duration")] = None,
    sort: Annotated[
        Sort,
        Query(
            description=(
                "Sort order. Any order but by time covers 31 days, unless `start` is given, and at "
                "most 250,000 usage events"
            )
        ),
    ] = "newest",
) -> Filters:
    """Of whichever tenant."""
    return Filters(
        None,
        start=start,
        end=end,
        api_key=api_key,
        adapter=adapter,
        class_=class_,
        status=status,
        min_cost=min_cost,
        max_cost=max_cost,
        kind=kind,
        finish_reason=finish_reason,
        min_queue_ms=min_queue_ms,
        min_ttft_ms=min_ttft_ms,
        min_duration_ms=min_duration_ms,
        sort=sort,
    )


Asked = Annotated[Filters, Depends(filters_of)]


@router.get("/v1/requests")
async def list_requests(
    session: TenantSession,
    tenant: UsageTenant,
    asked: Asked,
    q: Named = None,
    after: After = None,
    limit: Limit = 20,
) -> RequestPage:
    """List finished requests, newest first, or the slowest or most expensive first (`sort`). A
    search for what is rare may answer with few or no requests and `searching`: it goes on with
    `after` = `last_id`."""
    if q is not None:
        return await requests_named(session, q, tenant.tenant_id, after, limit)
    return await request_page(session, asked.of(tenant.tenant_id), after, limit)


@router.get("/v1/requests/{request_id}", response_model=Receipt)
async def get_request(
    request_id: str, session: TenantSession, state: State, tenant: UsageTenant
) -> Response:
    """Get the receipt of one request, by the answer's `id` or the `x-request-id`: signed, in
    canonical JSON. Save the body unchanged, and verify it with `tenora receipt verify`."""
    return _signed(await _receipts(state).receipt(session, request_id, tenant.tenant_id))


@router.get("/admin/v1/requests", dependencies=OPERATORS)
async def list_tenants_requests(
    session: AdminSession,
    asked: Asked,
    tenant: Annotated[
        Text | None,
        Query(
            description=(
                "Only the tenant with this id; without it, the last 7 days unless `start` is given"
            )
        ),
    ] = None,
    internal: Internal = False,
    q: Named = None,
    after: After = None,
    limit: Limit = 20,
) -> RequestPage:
    """As /v1/requests, for one tenant, or for all of them by time of arrival."""
    if q is not None:
        return await requests_named(session, q, tenant, after, limit)
    return await request_page(session, asked.of(tenant, internal=internal), after, limit)


@router.get("/admin/v1/requests/{request_id}", response_model=Receipt, dependencies=OPERATORS)
async def get_tenants_request(request_id: str, session: AdminSession, state: State) -> Response:
    """As /v1/requests/{id}, for any tenant. It never includes contents."""
    return _signed(await _receipts(state).receipt(session, request_id))


def _receipts(state: AppState) -> Receipts:
    return Receipts(state.signing_keys, state.secret, state.settings.installation)


def _signed(receipt: bytes) -> Response:
    return Response(receipt, media_type="application/json")
