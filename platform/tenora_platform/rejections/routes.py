"""HTTP routes of rejected calls: a tenant's own, and the operator's view of everybody's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.rejections import repository
from tenora_platform.rejections.repository import Filters, Found
from tenora_platform.rejections.schemas import RejectedCall, RejectedCallPage
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, TenantSession
from tenora_platform.times import QueryTime

router = APIRouter(tags=["rejections"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
Text = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]


async def filters_of(
    start: Annotated[QueryTime | None, Query(description="From here on")] = None,
    end: Annotated[QueryTime | None, Query(description="Before this")] = None,
    status: Annotated[
        str | None, Query(pattern="^([45]xx|[45][0-9]{2})$", description="429, or 4xx or 5xx")
    ] = None,
    code: Annotated[Text | None, Query(description="Such as rate_limit_exceeded")] = None,
    api_key: Annotated[Text | None, Query(description="Id of the key")] = None,
    q: Asked = None,
) -> Filters:
    """Of whichever tenant. `q` is looked for in message, field, code, model and request id."""
    if start is not None and end is not None and start >= end:
        raise BadRequestError("start must be before end.", param="start", code="invalid_value")
    wanted = None if status is None else int(status.removesuffix("xx"))
    return Filters(start=start, end=end, status=wanted, code=code, api_key=api_key, q=q)


AskedFilters = Annotated[Filters, Depends(filters_of)]


@router.get("/v1/rejected_calls")
async def list_rejected_calls(
    session: TenantSession,
    tenant: UsageTenant,
    asked: AskedFilters,
    after: After = None,
    limit: Limit = 20,
) -> RejectedCallPage:
    """Your calls of the inference API that were answered with an error, newest first, with the
    message, the field and the key: of the last days, at most 10,000. Beyond 60 calls a minute those
    of one kind are counted in one entry."""
    found = await repository.list_calls(session, asked.of(tenant.tenant_id), after, limit)
    return RejectedCallPage.of([_item(each) for each in found], limit)


@router.get("/admin/v1/rejected_calls", dependencies=[Depends(require_role(*MONEY_READERS))])
async def list_tenants_rejected_calls(
    session: AdminSession,
    asked: AskedFilters,
    tenant: Annotated[
        Text | None, Query(description="Whose (id); empty: of calls without a valid key")
    ] = None,
    after: After = None,
    limit: Limit = 20,
) -> RejectedCallPage:
    """As /v1/rejected_calls, of one tenant or of all, calls without a valid key among them."""
    found = await repository.list_calls(session, asked.of(tenant), after, limit)
    return RejectedCallPage.of([_item(each) for each in found], limit)


def _item(found: Found) -> RejectedCall:
    row = found.row
    return RejectedCall(
        id=row.id,
        at=row.at,
        last_at=row.last_at,
        calls=row.calls,
        tenant_id=row.tenant_id or None,
        tenant_name=found.tenant_name,
        api_key_id=row.api_key_id,
        api_key_name=found.key_name,
        route=row.route,
        status=row.status,
        code=row.code,
        param=row.param,
        message=row.message,
        model=row.model,
        request_id=row.request_id,
    )
