"""Puts the platform together: state, middleware, every domain's routes, the portal, and what runs
for as long as the process does. It decides nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import obstore.store
import structlog
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from obstore.store import ObjectStore
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from starlette.middleware.cors import CORSMiddleware

from tenora_engine.client import EngineClient
from tenora_engine.errors import EngineError
from tenora_platform.admin_key import admin_key_hashes
from tenora_platform.audit import routes as audit_routes
from tenora_platform.audit.service import AuditLog
from tenora_platform.auth import Authenticator
from tenora_platform.billing import routes as billing_routes
from tenora_platform.bodies import BodyLimit, KeyFirst
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.description import DescribedApi
from tenora_platform.errors import ErrorBody, install_error_handlers
from tenora_platform.http import RequestEdge
from tenora_platform.inference import routes as inference_routes
from tenora_platform.inference.flights import Flights
from tenora_platform.inference.tokenising import LongTexts
from tenora_platform.limits import routes as limits_routes
from tenora_platform.limits.service import Limits
from tenora_platform.operations import routes as operations_routes
from tenora_platform.operations.metrics import Metrics
from tenora_platform.outages import first_line, install_outage_handlers, log_failure
from tenora_platform.portal import Portal
from tenora_platform.registry import routes as registry_routes
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.forgetting import Forgetter
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.secret import load_secret
from tenora_platform.settings import Settings
from tenora_platform.state import AppState, EngineLife
from tenora_platform.tenants import routes as tenants_routes
from tenora_platform.texts import refuse_lone_surrogates
from tenora_platform.usage import routes as usage_routes
from tenora_platform.usage.leftovers import Leftovers, Unbilled
from tenora_platform.usage.sink import UsageSink

_log = structlog.get_logger(__name__)
_RETRY_S = 5.0
_CANCEL_S = 0.5
EXPOSED_HEADERS = (
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
    "x-tenora-adapter",
    "x-tenora-adapter-digest",
    "x-tenora-residency",
    "x-tenora-tier",
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)
"""What a page of another origin may read of an answer."""
OUTAGES = ("leases", "flights", "usage")
"""Background work without which requests must not be served; it shows in /readyz when it fails."""


def create_app(
    settings: Settings,
    *,
    engine: EngineClient | None = None,
    on_engine_failure: Callable[[Exception], None] | None = None,
) -> FastAPI:
    """The application. `settings` must name a database (already prepared) and a Redis; `engine`
    None starts the engine in a process of its own. The application answers at once and is ready
    when the engine is; `on_engine_failure` hears why it could not start."""
    metrics = Metrics()
    state = build_state(settings, engine or process_engine(settings), metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(state.db.close)
            stack.push_async_callback(state.redis.aclose)
            for name, work in background_work(state).items():
                outages = state.outages if name in OUTAGES else {}
                await stack.enter_async_context(_beside(name, work, outages))
            await stack.enter_async_context(_running_engine(state, on_engine_failure))
            yield

    app = application(lifespan)
    app.state.tenora = state
    portal = Portal(settings.portal_dir or portal_folder())
    app.router.default = portal.instead_of(app.router.default)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(KeyFirst)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestEdge, metrics=metrics)
    return app


def application(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Routes and error handlers, without any state: enough for the OpenAPI document."""
    app = DescribedApi(
        title="Tenora",
        version=version("tenora"),
        summary="Multi-tenant LoRA serving",
        lifespan=lifespan,
        dependencies=[Depends(refuse_lone_surrogates)],
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
        redoc_url=None,
        # Said here, FastAPI does not add its own 422, which we never send.
        responses={"4XX": {"model": ErrorBody, "description": "What was wrong"}},
    )
    install_error_handlers(app)
    install_outage_handlers(app)
    for router in (
        operations_routes.router,
        tenants_routes.router,
        limits_routes.router,
        audit_routes.router,
        inference_routes.router,
        registry_routes.router,
        usage_routes.router,
        billing_routes.router,
    ):
        app.include_router(router)
    return app


def openapi_document() -> dict[str, Any]:
    """The description of the API, as /openapi.json gives it."""

    @asynccontextmanager
    async def nothing(_: FastAPI) -> AsyncIterator[None]:
        yield

    return application(nothing).openapi()


def build_state(settings: Settings, engine: EngineClient, metrics: Metrics) -> AppState:
    """Everything that routes reach, connected lazily. Raises ValueError without server URLs."""
    if settings.database_url is None or settings.redis_url is None:
        raise ValueError("create_app needs database_url and redis_url; start the servers first")
    secret = load_secret(
        settings.data_dir, settings.secret.get_secret_value() if settings.secret else None
    )
    db = Database(database_urls(settings.database_url, secret))
    redis = open_redis(settings.redis_url)
    return AppState(
        settings=settings,
        secret=secret,
        db=db,
        redis=redis,
        objects=open_object_store(settings.object_store_url),
        engine=engine,
        engine_life=EngineLife(),
        auth=Authenticator(
            db=db,
            redis=redis,
            secret=secret,
            admin_key_hashes=admin_key_hashes(settings, secret),
            cache_s=settings.auth_cache_s,
        ),
        limits=Limits(redis, lease_s=settings.lease_s, metrics=metrics),
        audit=AuditLog(secret),
        metrics=metrics,
        unbilled=Unbilled(),
        long_texts=LongTexts(),
        flights=Flights(redis),
        upload_waits=asyncio.Event(),
    )


def process_engine(settings: Settings) -> EngineClient:
    """The engine as a local process; it is started by the application's lifespan."""
    from tenora_engine.transport.process import ProcessEngineClient

    return ProcessEngineClient(
        settings.to_engine_config(), socket_dir=settings.data_dir.resolve() / "engine"
    )


def open_redis(url: str) -> Redis:
    """A client that gives up within seconds: a request must not hang on a cache."""
    return Redis.from_url(
        url,
        socket_connect_timeout=2,
        socket_timeout=5,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), retries=2),
    )


def open_object_store(location: str) -> ObjectStore:
    """A folder (made if missing) or anything obstore has a URL for (s3://, gs://, az://)."""
    if "://" in location:
        return obstore.store.from_url(location)
    return obstore.store.LocalStore(prefix=Path(location), mkdir=True)


def portal_folder() -> Path:
    """Where the checkout builds the portal."""
    return Path(__file__).resolve().parents[2] / "admin_ui" / "dist"


def background_work(state: AppState) -> dict[str, Callable[[], Awaitable[None]]]:
    """What runs for as long as the process does; each would run for ever."""
    sink = UsageSink(state.engine, state.db)
    return {
        "leases": state.limits.keep_leases,
        "flights": state.flights.keep_watch,
        "intake": IntakeWorker(state).run,
        "collector": Collector(state).run,
        "forgetter": Forgetter(state).run,
        "usage": sink.run,
        "leftovers": Leftovers(state.db, sink, state.unbilled, state.metrics).run,
    }


@asynccontextmanager
async def _beside(
    name: str, work: Callable[[], Awaitable[None]], outages: dict[str, str]
) -> AsyncIterator[None]:
    """Run `work` for as long as the block does. Should it end, say so (in `outages` too, until it
    works again) and begin it again."""

    async def keep_working() -> None:
        while True:
            try:
                await work()
                outages[name] = "it has ended"
            except Exception as error:
                outages[name] = f"{type(error).__name__}: {first_line(error)}"
                log_failure(_log, "background work failed", error, work=name, again_in_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)
            outages.pop(name, None)

    task = asyncio.create_task(keep_working(), name=name)
    try:
        yield
    finally:
        while not task.done():
            task.cancel()  # again: a cancellation while redis-py connects may come out as its error
            await asyncio.wait([task], timeout=_CANCEL_S)


@asynccontextmanager
async def _running_engine(
    state: AppState, on_failure: Callable[[Exception], None] | None
) -> AsyncIterator[None]:
    async def start() -> None:
        try:
            await state.engine.start()
            if not state.settings.allow_control_tokens:
                state.engine.text.prepare_plain()
        except (EngineError, OSError) as error:
            state.engine_life.error = str(error)
            _log.error("engine could not start", reason=str(error))
            if on_failure is not None:
                on_failure(error)
        else:
            state.engine_life.started = True
            state.upload_waits.set()
            _log.info("engine ready", model=state.engine.model.id)

    starting = asyncio.create_task(start())
    try:
        yield
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await state.engine.stop()


def _operation_id(route: APIRoute) -> str:
    """`tag_function`: stable, and a good name in generated clients."""
    tag = str(route.tags[0]) if route.tags else "root"
    return f"{tag}_{route.name}"
