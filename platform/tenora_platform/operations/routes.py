"""HTTP routes for whoever runs the server: probes, metrics, and the engine's state."""

from __future__ import annotations

import asyncio
from importlib.metadata import version as package_version
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from msgspec.structs import replace
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from tenora_engine.errors import EngineError
from tenora_engine.events import EngineStats
from tenora_platform.auth import require_role, role_if_any
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ApiError, UnavailableError
from tenora_platform.operations.readiness import readiness_of
from tenora_platform.operations.schemas import EngineView, Health, ProcessList, Readiness, Version
from tenora_platform.operations.service import engine_view, process_view
from tenora_platform.operators.roles import READERS, AdminContext
from tenora_platform.probing.progress import progress
from tenora_platform.probing.schemas import ProbingView
from tenora_platform.state import (
    AdminSession,
    AppState,
    ReadyEngine,
    State,
    answered,
)

router = APIRouter(tags=["operations"], route_class=EdgeRoute)
MetricsReader = Annotated[
    AdminContext | None, Depends(role_if_any("operator", "read_only", "metrics"))
]
_reader = role_if_any(*READERS)
_KEY_S = 1.0  # for a key that only the database knows


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
async def readiness(state: State, request: Request, response: Response) -> Readiness:
    """Readiness: 200 once requests can be served, else 503 with the reason; hosts, paths and
    drivers' words only with an admin key. Other engines call it /health, or /health_generate:
    nothing is generated."""
    view = await readiness_of(state, detailed=await _is_operator(request))
    response.status_code = 200 if view.status == "ready" else 503
    return view


@router.get("/metrics", response_class=Response)
async def metrics(state: State, reader: MetricsReader) -> Response:
    """Prometheus's exposition format. Tenants and hosts are named only with an admin key that may
    read them; the role `metrics` may do nothing else."""
    stats, answers = await _stats(state)
    if stats is not None and reader is None:
        stats = replace(stats, telemetry=stats.telemetry.without_tenants())
    refuses = state.engine.refuses is not None
    state.metrics.record_engine(stats, refuses=refuses, answers=answers)
    shown = state.metrics.text(hosts=reader is not None)
    return Response(shown, media_type="text/plain; version=0.0.4; charset=utf-8")


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


async def _is_operator(request: Request) -> bool:
    """Whether who asks may read what the operator does. A probe is answered whatever key it brings,
    and does not wait for a database to say whose that is."""
    try:
        async with asyncio.timeout(_KEY_S):
            return await _reader(request) is not None
    except (ApiError, SQLAlchemyError, RedisError, OSError):  # a timeout is an OSError
        return False
