"""Puts the platform together: state, middleware, every domain's routes, the portal, and what runs
for as long as the process does. It decides nothing itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from tenora_engine.client import EngineClient
from tenora_platform.assembly import build_state, running_engine
from tenora_platform.audit import routes as audit_routes
from tenora_platform.auth import current_tenant
from tenora_platform.background import Work, all_work, doing
from tenora_platform.billing import routes as billing_routes
from tenora_platform.bodies import BodyGate, OpenBodies
from tenora_platform.budgets import account_routes
from tenora_platform.budgets import routes as budgets_routes
from tenora_platform.compression import Compression
from tenora_platform.description import DescribedApi
from tenora_platform.erasure import routes as erasure_routes
from tenora_platform.errors import ErrorBody, install_error_handlers
from tenora_platform.evaluations import routes as evaluations_routes
from tenora_platform.events import routes as events_routes
from tenora_platform.forecasts import routes as forecast_routes
from tenora_platform.history import routes as history_routes
from tenora_platform.http import RequestEdge
from tenora_platform.idempotency.layer import Idempotency
from tenora_platform.inference import embedding_routes, token_routes
from tenora_platform.inference import routes as inference_routes
from tenora_platform.inference.anthropic import routes as anthropic_routes
from tenora_platform.inference.responses import routes as response_routes
from tenora_platform.invoices import export_routes, party_routes
from tenora_platform.invoices import routes as invoices_routes
from tenora_platform.invoices import tenant_routes as tenant_invoices_routes
from tenora_platform.ledger import routes as ledger_routes
from tenora_platform.limits import routes as limits_routes
from tenora_platform.live import routes as live_routes
from tenora_platform.me import routes as me_routes
from tenora_platform.memory import routes as memory_routes
from tenora_platform.operations import routes as operations_routes
from tenora_platform.operations.metrics import Metrics
from tenora_platform.operators import routes as operators_routes
from tenora_platform.outages import install_outage_handlers
from tenora_platform.people import auth_routes
from tenora_platform.people import routes as people_routes
from tenora_platform.portal import Portal
from tenora_platform.probing import routes as probing_routes
from tenora_platform.processes.presence import Role
from tenora_platform.receipts import contents_routes
from tenora_platform.receipts import key_routes as signing_key_routes
from tenora_platform.receipts import routes as receipts_routes
from tenora_platform.reconciliation import routes as reconciliation_routes
from tenora_platform.registry import import_routes
from tenora_platform.registry import routes as registry_routes
from tenora_platform.rejections import routes as rejections_routes
from tenora_platform.resources import portal_folder
from tenora_platform.rollouts import routes as rollout_routes
from tenora_platform.settings import Settings
from tenora_platform.state import AppState
from tenora_platform.tenants import key_routes
from tenora_platform.tenants import routes as tenants_routes
from tenora_platform.usage import routes as usage_routes
from tenora_platform.usage import tenant_cost_routes
from tenora_platform.waits import routes as waits_routes
from tenora_platform.webhooks import routes as webhooks_routes

EXPOSED_HEADERS = (
    "deprecation",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
    "x-tenora-adapter",
    "x-tenora-adapter-digest",
    "x-tenora-budget",
    "x-tenora-limits",
    "x-tenora-max-tokens",
    "x-tenora-residency",
    "x-tenora-tier",
    "x-tenora-warning",
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)
"""What a page of another origin may read of an answer."""


def create_app(
    settings: Settings,
    *,
    engine: EngineClient,
    work: Callable[[AppState], Work] = all_work,
    metrics: Metrics | None = None,
    role: Role = "all",
    name: str = "",
) -> FastAPI:
    """The application. `settings` must name a database (already prepared) and a Redis; `work` runs
    beside requests. The application answers at once and is ready when the engine is."""
    metrics = metrics or Metrics()
    state = build_state(settings, engine, metrics, role, name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(state.checker.close)
            stack.callback(state.preflights.close)
            stack.callback(state.apart.close)
            stack.push_async_callback(state.db.close)
            stack.push_async_callback(state.redis.aclose)
            stack.push_async_callback(state.probes.close)
            stack.push_async_callback(state.live.finish)
            stack.push_async_callback(state.budgets.finish)
            stack.push_async_callback(state.contents.finish)
            stack.push_async_callback(state.rejected.finish)
            stack.push_async_callback(state.outcomes.finish)
            stack.push_async_callback(state.shadows.finish)
            await stack.enter_async_context(doing(work(state), state.outages))
            await stack.enter_async_context(running_engine(state))
            yield

    app = application(lifespan)
    app.state.tenora = state
    if settings.path_prefix:
        app.servers = [{"url": settings.path_prefix}]
    secure = settings.base_url.startswith("https://")
    portal = Portal(
        settings.portal_dir or portal_folder(), secure=secure, prefix=settings.path_prefix
    )
    app.router.default = portal.instead_of(app.router.default)
    app.add_middleware(Idempotency)
    app.state.bodies = OpenBodies()
    app.add_middleware(BodyGate, bodies=app.state.bodies)
    app.add_middleware(Compression)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(
        RequestEdge,
        metrics=metrics,
        answered=(state.answers.note, state.rejected.note),
        prefix=settings.path_prefix,
    )
    return app


def application(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Routes and error handlers, without any state: enough for the OpenAPI document."""
    app = DescribedApi(
        title="Tenora",
        version=version("tenora"),
        summary="Multi-tenant LoRA serving",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # the portal's, from our own files
        redoc_url=None,
        routes=[*_routes()],
    )
    install_error_handlers(app, current_tenant)
    install_outage_handlers(app)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Of every application of this process: what FastAPI builds of them at the first request takes
    half a second, and knows no application."""
    everything = APIRouter(
        generate_unique_id_function=_operation_id,
        # Said here, FastAPI does not add its own 422, which we never send.
        responses={"4XX": {"model": ErrorBody, "description": "What was wrong"}},
    )
    for router in (
        operations_routes.router,
        memory_routes.router,
        operators_routes.router,
        tenants_routes.router,
        erasure_routes.router,
        key_routes.router,
        me_routes.router,
        auth_routes.router,
        people_routes.router,
        limits_routes.router,
        audit_routes.router,
        inference_routes.router,
        anthropic_routes.router,
        response_routes.router,
        token_routes.router,
        embedding_routes.router,
        import_routes.router,
        registry_routes.router,
        rollout_routes.router,
        probing_routes.router,
        evaluations_routes.router,
        usage_routes.router,
        forecast_routes.router,
        tenant_cost_routes.router,
        reconciliation_routes.router,
        billing_routes.router,
        budgets_routes.router,
        budgets_routes.of_all,
        account_routes.router,
        ledger_routes.router,
        events_routes.router,
        live_routes.router,
        history_routes.router,
        signing_key_routes.router,
        contents_routes.router,
        contents_routes.admin,
        receipts_routes.router,
        rejections_routes.router,
        invoices_routes.router,
        tenant_invoices_routes.router,
        party_routes.router,
        export_routes.router,
        waits_routes.router,
        webhooks_routes.router,
    ):
        everything.include_router(router)
    return tuple(everything.routes)


def openapi_document() -> dict[str, Any]:
    """The description of the API, as /openapi.json gives it."""

    @asynccontextmanager
    async def nothing(_: FastAPI) -> AsyncIterator[None]:
        yield

    return application(nothing).openapi()


def _operation_id(route: APIRoute) -> str:
    """`tag_function`: stable, and a good name in generated clients."""
    tag = str(route.tags[0]) if route.tags else "root"
    return f"{tag}_{route.name}"
