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
        QueryTime | None, Query(description="What ended from here on; default: this month's begin")
    ] = None,
    end: Annotated[QueryTime | None, Query(description="Before this; default: now")] = None,
    tenant: Annotated[str | None, Query(description="Only this tenant's (id)")] = None,
    form: Annotated[Form, Query(description="As OpenMeter or as Lago ingests it")] = "openmeter",
) -> StreamingResponse:
    """Each event of usage as a line of JSON, by time: a CloudEvent as OpenMeter takes it, or an
    element of `events` as Lago does. An event has the same id in every export."""
    now = datetime.now(UTC)
    begin, until = start or midnight(month_of(now)), end or now
    if begin >= until:
        raise BadRequestError("start must be before end.", param="start")
    export = Export(begin, until, tenant, f"tenora/{state.settings.installation}", form)
    return await ndjson(lines(state.db.patient(), export))
