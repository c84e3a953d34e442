"""Answers that end when the client goes away: server-sent events, and a plain answer that is waited
for. Knows ASGI; the work is an async generator or a coroutine that cleans up when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenora_platform.errors import ApiError

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
LEAVE_S = 25.0
"""What a client has left ends by itself within this time, or is cut off."""


class ClientGoneError(ApiError):
    """Nobody is there to read this; it shows in logs and metrics only."""

    status = 499
    type = "invalid_request_error"
    code = "client_gone"


def sse(payload: object) -> bytes:
    """One event. msgspec's JSON has no raw newlines, so one line is enough."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


class EventStream(Response):
    """Streams `events`; headers are asked for when the first one is there, so that whatever goes
    wrong before it still has its own status. Starlette's own StreamingResponse would notice a
    client that left only at the next send, which may be seconds away."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        headers: Callable[[], Mapping[str, str]],
        leave: Callable[[ApiError], Awaitable[None]],
        after: Callable[[], Awaitable[None]],
        failure: Callable[[], ApiError | None] = lambda: None,
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._after = after  # all of it was sent
        self._events = events
        self._failure = failure  # that the last event told
        self._leave = leave
        self._more_headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGoneError):  # what has begun can only be cut off
            await unless_gone(receive, self._sent(scope, send), self._leave)
            await self._after()

    async def _sent(self, scope: Scope, send: Send) -> None:
        try:
            await self._send_all(send)
        finally:
            failure = self._failure()
            if failure is not None and not isinstance(failure, ClientGoneError):
                scope["state"]["error"] = failure  # for who counts and lists them

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            started = False
            async for event in events:
                if not started:
                    await send(self._start())
                    started = True
                is_last = event.endswith(DONE)
                await send({"type": "http.response.body", "body": event, "more_body": not is_last})
                if is_last:
                    return
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _start(self) -> dict[str, Any]:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # nginx would collect the events
            **self._more_headers(),
        }
        raw = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
        return {"type": "http.response.start", "status": self.status_code, "headers": raw}


async def unless_gone(
    receive: Receive,
    work: Coroutine[Any, Any, T],
    leave: Callable[[ApiError], Awaitable[None]],
) -> T:
    """The result of `work`. As soon as the client disconnects `leave` is told to end it; it is
    cancelled if that takes too long. Raises ClientGoneError then. The request's body must have been
    read."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            gone = ClientGoneError("The client closed the connection.")
            await leave(gone)
            await asyncio.wait({working}, timeout=LEAVE_S)
            raise gone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
