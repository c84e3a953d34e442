"""HTTP route of usage for other metering services: a stream of CloudEvents lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import StreamingResponse

from tenora_platform.auth import require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.exports import ndjson
from tenora_platform.invoices.cloudevents import Export, Form, lines
from tenora_platform.invoices.period import midnight, month_of
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.state import State
from tenora_platform.times import QueryTime

router = APIRouter(prefix="/admin/v1/usage", tags=["usage"], route_class=EdgeRoute)


@router.get(
    "/cloudevents",
    dependencies=[Depends(require_role(*MONEY_READERS))],
    response_class=StreamingResponse,
)
async def export_usage(
    state: State,
    start: Annotated[
        QueryTime | None,
        Query(
            description=(
                "Only requests that ended at or after this time; default: the start of this month"
            )
        ),
    ] = None,
    end: Annotated[
        QueryTime | None,
        Query(description="Only requests that ended before this time; default: now"),
    ] = None,
    tenant: Annotated[str | None, Query(description="Only the tenant with this id")] = None,
    form: Annotated[Form, Query(description="The format: for OpenMeter or for Lago")] = "openmeter",
) -> StreamingResponse:
    """Export each usage event as a JSON line, by time: as a CloudEvent for OpenMeter, or as an
    element of `events` for Lago. An event has the same id in every export."""
    now = datetime.now(UTC)
    begin, until = start or midnight(month_of(now)), end or now
    if begin >= until:
        raise BadRequestError("start must be before end.", param="start")
    export = Export(begin, until, tenant, f"tenora/{state.settings.installation}", form)
    return await ndjson(lines(state.db.patient(), export))
