"""HTTP routes of requests: searched, and one by one as signed receipts."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.receipts.schemas import Receipt, RequestPage
from tenora_platform.receipts.search import Filters, Status
from tenora_platform.receipts.service import Receipts, request_page
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, AppState, State, TenantSession
from tenora_platform.times import QueryTime

router = APIRouter(tags=["receipts"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
OPERATORS = [Depends(require_role(*MONEY_READERS))]

Text = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]
Cost = Annotated[Decimal, Query(ge=0, max_digits=38, decimal_places=12)]


async def filters_of(
    start: Annotated[QueryTime | None, Query(description="Ended from here on")] = None,
    end: Annotated[QueryTime | None, Query(description="Ended before this")] = None,
    api_key: Annotated[Text | None, Query(description="Id of the key")] = None,
    adapter: Annotated[Text | None, Query(description="`name` or `name@version` that ran")] = None,
    status: Annotated[Status | None, Query(description="Of the worst of its sequences")] = None,
    class_: Annotated[Text | None, Query(alias="class", description="That served")] = None,
    min_cost: Annotated[Cost | None, Query(description="Of the whole request")] = None,
    max_cost: Annotated[Cost | None, Query(description="Of the whole request")] = None,
) -> Filters:
    """Of whichever tenant."""
    return Filters("", start, end, api_key, adapter, class_, status, min_cost, max_cost)


Asked = Annotated[Filters, Depends(filters_of)]


@router.get("/v1/requests")
async def list_requests(
    session: TenantSession,
    tenant: UsageTenant,
    asked: Asked,
    after: After = None,
    limit: Limit = 20,
) -> RequestPage:
    """Requests that have ended, newest first."""
    return await request_page(session, asked.of(tenant.tenant_id), after, limit)


@router.get("/v1/requests/{request_id}", response_model=Receipt)
async def get_request(
    request_id: str, session: TenantSession, state: State, tenant: UsageTenant
) -> Response:
    """The receipt of one request, by the answer's `id` or the `x-request-id`: signed, in canonical
    JSON. Save the body as it is, and check it by `tenora receipt verify`."""
    return _signed(await _receipts(state).receipt(session, request_id, tenant.tenant_id))


@router.get("/admin/v1/requests", dependencies=OPERATORS)
async def list_tenants_requests(
    session: AdminSession,
    tenant: Annotated[str, Query(max_length=256, description="Whose (id)")],
    asked: Asked,
    after: After = None,
    limit: Limit = 20,
) -> RequestPage:
    """As /v1/requests, of one tenant."""
    return await request_page(session, asked.of(tenant), after, limit)


@router.get("/admin/v1/requests/{request_id}", response_model=Receipt, dependencies=OPERATORS)
async def get_tenants_request(request_id: str, session: AdminSession, state: State) -> Response:
    """As /v1/requests/{id}, of whichever tenant. Contents are never in it."""
    return _signed(await _receipts(state).receipt(session, request_id))


def _receipts(state: AppState) -> Receipts:
    return Receipts(state.signing_keys, state.secret, state.settings.installation)


def _signed(receipt: bytes) -> Response:
    return Response(receipt, media_type="application/json")
