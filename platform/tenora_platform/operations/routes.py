"""HTTP routes for whoever runs the server: probes, metrics, and the engine's state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.metadata import version as package_version
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Response
from msgspec.structs import replace
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats
from tenora_platform.auth import require_role, role_if_any
from tenora_platform.background import NEEDED
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import UnavailableError
from tenora_platform.operations.schemas import EngineView, Health, ProcessList, Readiness, Version
from tenora_platform.operations.service import engine_view, process_view, warnings_of
from tenora_platform.operators.roles import READERS, AdminContext
from tenora_platform.outages import first_line
from tenora_platform.probing.progress import progress
from tenora_platform.probing.schemas import ProbingView
from tenora_platform.state import (
    AdminSession,
    AppState,
    ReadyEngine,
    State,
    answered,
    not_ready_reason,
)

router = APIRouter(tags=["operations"], route_class=EdgeRoute)
MetricsReader = Annotated[
    AdminContext | None, Depends(role_if_any("operator", "read_only", "metrics"))
]
_log = structlog.get_logger(__name__)
_PROBE_S = 3.0  # a probe is asked every few seconds and says so within five


@router.get("/healthz")
async def health() -> Health:
    """Liveness: the process is running."""
    return Health()


@router.get("/version")
async def version() -> Version:
    """Get the version of Tenora."""
    return Version(version=package_version("tenora"))


@router.get("/health_generate", responses={503: {"model": Readiness}}, include_in_schema=False)
@router.get("/health", responses={503: {"model": Readiness}}, include_in_schema=False)
@router.get("/readyz", responses={503: {"model": Readiness}})
async def readiness(state: State, response: Response) -> Readiness:
    """Readiness: 200 once requests can be served, else 503 with the reason. Other engines call it
    /health, or /health_generate: nothing is generated."""
    warnings = warnings_of(state)
    reason = await _not_ready(state, warnings)
    if reason is None:
        warnings += state.engine.model.warnings
        return Readiness(status="ready", warnings=warnings)
    response.status_code = 503
    return Readiness(status="not_ready", reason=reason, warnings=warnings)


@router.get("/metrics", response_class=Response)
async def metrics(state: State, reader: MetricsReader) -> Response:
    """Prometheus's exposition format. Tenants are told apart only with an admin key that may read
    them; the role `metrics` may do nothing else."""
    stats, answers = await _stats(state)
    if stats is not None and reader is None:
        stats = replace(stats, telemetry=stats.telemetry.without_tenants())
    refuses = state.engine.refuses is not None
    state.metrics.record_engine(stats, refuses=refuses, answers=answers)
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/admin/v1/processes", tags=["admin"], dependencies=[Depends(require_role(*READERS))])
async def processes(state: State) -> ProcessList:
    """List the running processes of the installation: their role, start time, and failing tasks."""
    return ProcessList(data=[process_view(each) for each in await state.presence.read()])


@router.get("/admin/v1/engine", tags=["admin"], dependencies=[Depends(require_role(*READERS))])
async def engine(state: State, engine: ReadyEngine) -> EngineView:
    """Get replicas, the page pool by kind and tenant, resident adapters, queues, and attainment by
    class and tenant."""
    stats = await answered(engine.stats())
    async with state.db.admin_session() as session:
        return await engine_view(session, state, stats)


@router.get("/admin/v1/probing", tags=["admin"], dependencies=[Depends(require_role(*READERS))])
async def probing(state: State, session: AdminSession) -> ProbingView:
    """Get the progress of the probes of adapter versions: how many are waiting, how much of a CPU
    core they use, and when they will be done."""
    return await progress(session, state)


async def _stats(state: AppState) -> tuple[EngineStats | None, bool]:
    """What the engine last said of itself, None while it does not serve, and whether it has said so
    now."""
    if not state.engine.ready:
        return None, False
    try:
        state.metrics.last_engine = await answered(state.engine.stats())
    except EngineError:
        return None, False  # shown as tenora_engine_ready 0
    except UnavailableError:
        return state.metrics.last_engine, False
    return state.metrics.last_engine, True


async def _not_ready(state: AppState, warnings: list[str]) -> str | None:
    """Why requests cannot be served; `warnings` gets what they are served in spite of."""
    if not state.engine.ready or state.engine.refuses is not None:
        return not_ready_reason(state)
    for work, why in state.outages.items():
        if work not in NEEDED:
            continue
        return f"The background task '{work}' has failed and is being restarted: {why}"
    database, redis = await asyncio.gather(
        _away("The database", state.db.ping()), _away("Redis", state.redis.ping())
    )
    if redis is not None:
        left_s = state.limits.away()
        if left_s is not None:
            warnings.append(
                f"{redis} Rate limits are checked without it for another {left_s:.0f} s."
            )
            redis = None
    return " ".join(answer for answer in (database, redis) if answer is not None) or None


async def _away(server: str, ping: Awaitable[object]) -> str | None:
    try:
        async with asyncio.timeout(_PROBE_S):
            await ping
    except (SQLAlchemyError, RedisError, OSError) as error:  # a timeout is an OSError
        _log.warning("not ready", server=server, reason=first_line(error))
        return f"{server} does not answer."
    return None
