"""HTTP routes of time series: how everybody was served, for the operator; how they were, for
tenants."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError
from tenora_platform.history import repository, service
from tenora_platform.history.metrics import (
    ADMIN_GROUPS,
    ADMIN_METRICS,
    TENANT_GROUPS,
    TENANT_METRICS,
    chosen,
    groups,
)
from tenora_platform.history.own import EventQuestion, find_events, from_events
from tenora_platform.history.repository import Asked
from tenora_platform.history.schemas import TimeSeriesAnswer
from tenora_platform.history.window import STEPS_S, Window, window
from tenora_platform.large_answers import large_answer
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.state import AppState, State
from tenora_platform.times import QueryTime

router = APIRouter(tags=["history"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]

MetricNames = Annotated[
    str,
    Query(
        alias="metric",
        description="Names of metrics, comma-separated, such as ttft_attainment,output_tokens",
    ),
]
Start = Annotated[
    QueryTime | None, Query(description="Start of the period; default: an hour before its end")
]
End = Annotated[QueryTime | None, Query(description="End of the period (exclusive); default: now")]
Step = Annotated[
    str | None,
    Query(
        description=(
            f"Length of a step: one of {', '.join(STEPS_S)}; increased if the answer would "
            "have more than 500 points"
        )
    ),
]
Class = Annotated[str | None, Query(alias="class", description="Only this class")]
Lanes = Annotated[
    int,
    Query(
        ge=1,
        le=500,
        description=(
            "Maximum number of series per metric; decreased if the answer would have more than "
            "200,000 points"
        ),
    ),
]


async def asked_window(
    state: State, start: Start = None, end: End = None, step: Step = None
) -> Window:
    if step is not None and step not in STEPS_S:
        raise BadRequestError(
            f"step must be one of {', '.join(STEPS_S)}, not {step}.", param="step"
        )
    return window(start, end, step, minutes_days=state.settings.history_minutes_days)


AskedWindow = Annotated[Window, Depends(asked_window)]


@router.get(
    "/admin/v1/timeseries",
    tags=["admin"],
    response_model=TimeSeriesAnswer,
    dependencies=[Depends(require_role(*MONEY_READERS))],
)
async def get_timeseries(
    state: State,
    metric: MetricNames,
    asked: AskedWindow,
    group_by: Annotated[
        str | None, Query(description="Group by any of tenant, class (comma-separated)")
    ] = None,
    tenant: Annotated[str | None, Query(description="Only the tenant with this id")] = None,
    service_class: Class = None,
    limit: Lanes = 100,
) -> Response:
    """Get service over time, kept across restarts: targets promised and met, tokens, answers and
    errors, queues, pages, loads. A series without a tenant is over all tenants, or (when grouped by
    tenant) over those that the metrics do not tell apart. The engine's own metrics cannot be
    grouped."""
    metrics = chosen(metric, ADMIN_METRICS)
    wanted = Asked(asked, groups(group_by, ADMIN_GROUPS), tenant, service_class)
    limit = service.fitting(limit, asked, metrics)
    async with state.db.admin_session() as session:
        looked = await service.looked(session, asked)
        found = await service.find(session, wanted, metrics, limit, looked)
        until = await repository.known_until(session)

    def made() -> TimeSeriesAnswer:
        answer = found.answer()
        answer.known_until = until.timestamp() if until is not None else None
        return answer

    return await large_answer(state.large_answers, None, made)


@router.get("/v1/timeseries", response_model=TimeSeriesAnswer)
async def get_own_timeseries(
    state: State,
    tenant: UsageTenant,
    metric: MetricNames,
    asked: AskedWindow,
    group_by: Annotated[
        str | None, Query(description="Group by any of class, adapter, version (comma-separated)")
    ] = None,
    adapter: Annotated[str | None, Query(description="Only the adapter with this name")] = None,
    service_class: Class = None,
    limit: Lanes = 100,
) -> Response:
    """Get how you were served over time: tokens, answers and errors, times to the first token and
    between tokens with the plan's targets. By `adapter` and `version` it covers finished requests
    of at most 31 days, without refusals and HTTP errors."""
    metrics = chosen(metric, TENANT_METRICS)
    by = groups(group_by, TENANT_GROUPS)
    looked, until = await _looked(state, asked)
    plan = tenant.plan
    limit = service.fitting(limit, asked, metrics)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        by_adapter = adapter is not None or "adapter" in by or "version" in by
        of_events = from_events(metrics, all_=by_adapter)
        if not by_adapter and await repository.has_rows_of(session, asked, tenant.tenant_id):
            of_events = {}  # the engine tells this tenant apart, and knows more than its events
        promised = (plan.sla_class, plan.ttft_ms, plan.tpot_ms)
        question = EventQuestion(
            tenant.tenant_id, asked, by, of_events, promised, adapter, service_class
        )
        events = await find_events(session, question, limit)
        wanted = Asked(asked, by, tenant.tenant_id, service_class)
        rest = {name: each for name, each in metrics.items() if name not in of_events}
        found = await service.find(session, wanted, rest, limit, looked)

    def made() -> TimeSeriesAnswer:
        answer = found.answer()
        events.add_to(answer, limit)
        answer.known_until = until
        return answer

    return await large_answer(state.large_answers, tenant.tenant_id, made)


async def _looked(state: AppState, asked: Window) -> tuple[frozenset[int], float | None]:
    """The steps in which the engine was looked at: nobody's secret, and no tenant's row."""
    async with state.db.admin_session() as session:
        until = await repository.known_until(session)
        steps = await service.looked(session, asked)
    return steps, until.timestamp() if until is not None else None
