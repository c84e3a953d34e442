"""HTTP routes of live updates: one stream of server-sent events for a tenant, one for the
operator."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from tenora_platform.auth import (
    TenantContext,
    current_admin,
    listening_tenant,
    require_role,
    tenant_of_caller,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ApiError, ForbiddenError
from tenora_platform.inference.stream import EventStream
from tenora_platform.live.stream import Stream
from tenora_platform.live.topics import TOPICS
from tenora_platform.operators.roles import MONEY_READERS, AdminContext
from tenora_platform.state import AppState, State

router = APIRouter(tags=["live"], route_class=EdgeRoute)
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events", "content": {"text/event-stream": {}}}
}
_LASTS_MAX_S = 86_400

Listener = Annotated[TenantContext, Depends(listening_tenant)]
Operator = Annotated[AdminContext, Depends(require_role(*MONEY_READERS))]
Lasts = Annotated[
    float | None,
    Query(
        ge=0,
        le=_LASTS_MAX_S,
        description="End the stream after this many seconds; default: no limit",
    ),
]
Tenant = Annotated[
    str | None,
    Query(
        description=(
            "The tenant's id. Same as the header x-tenora-tenant, which a browser's "
            "EventSource cannot send"
        )
    ),
]
LastEvent = Annotated[str | None, Header(alias="last-event-id")]


@router.get("/v1/events/stream", response_class=StreamingResponse, responses=_STREAM)
async def stream_events(
    state: State,
    request: Request,
    listener: Listener,
    lasts_s: Lasts = None,
    tenant: Tenant = None,
    last_event_id: LastEvent = None,
) -> Response:
    """Stream server-sent events about the tenant. First `hello` {at, interval}; `change` {topics}
    says what to fetch again, such as `adapters` or `usage`; `ping` {at} comes at least every
    `interval` seconds; `end` {code, message} when the server ends the stream. A client that
    reconnects with `last-event-id` is told that everything may have changed."""

    async def check() -> None:
        # Of this tenant: who named none may belong to another by now.
        await tenant_of_caller(_anew(request), listener.tenant_id)

    stream = Stream(listener.tenant_id, None, listener.key_id, check)
    return _answer(state, stream, lasts_s, last_event_id)


@router.get("/admin/v1/events", tags=["admin"], response_class=StreamingResponse, responses=_STREAM)
async def stream_all_events(
    state: State,
    request: Request,
    operator: Operator,
    lasts_s: Lasts = None,
    last_event_id: LastEvent = None,
) -> Response:
    """As a tenant's stream, for everything. Keys that may read the engine also receive `engine`
    every two seconds (running, waiting by class, tokens per second, pages by kind), and `processes`
    when the processes change."""

    async def check() -> None:
        if (await current_admin(_anew(request))).role != operator.role:
            raise ForbiddenError("Your role has changed; connect again.", code="role_changed")

    stream = Stream(None, operator.role, operator.key_id, check)
    return _answer(state, stream, lasts_s, last_event_id)


def _answer(
    state: AppState, stream: Stream, lasts_s: float | None, last_event_id: str | None
) -> Response:
    missed = TOPICS if last_event_id else frozenset[str]()

    async def events() -> AsyncGenerator[bytes]:
        async with state.live.joined(stream):
            async for event in stream.events(lasts_s, missed):
                yield event

    async def leave(_: ApiError) -> None:
        stream.end("left", "The client closed the connection.")

    async def after() -> None:
        return None

    return EventStream(events(), dict, leave, after)


def _anew(request: Request) -> Request:
    """The same, of which nobody knows whose it is."""
    return Request({**request.scope, "state": {}})
