"""The bodies of requests on their way in: nothing of one is given out before the edge has said how
much may come, and what nobody reads ends its connection. Knows bytes, neither keys nor routes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenora_platform.errors import ApiError, TooLargeError, WhileReading, server_stopping

VALUES_MAX = 16_384
"""Of a JSON body, as `json_bodies` counts, where nothing else is said."""
_SMALL_BYTES = 65_536  # what a connection buffers anyway
LINGER_S = 5.0
LINGER_BYTES = 16 * 1024**2
"""How long, and for how many bytes, the rest of a refused body is taken and thrown away. Most
clients send all of one before they read; closed on sooner, they see a reset and no error."""


class RequestBody:
    """One request's body. `allow` opens it; until then not one byte is taken."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        length = header_of(scope, b"content-length") or b""
        self.declared_bytes = int(length) if length.isdigit() else None
        """What the client says of its length; None where it says nothing."""
        chunked = header_of(scope, b"transfer-encoding") is not None
        self.ended = not (self.declared_bytes or chunked)
        self.allowed_bytes: int | None = None
        self.values_max = VALUES_MAX
        self._refusal: ApiError | None = None
        self._end: ApiError | None = None
        self._reader: asyncio.Task[object] | None = None  # who waits for more of it
        self._receive = receive
        self._received_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether it may be read; one that is empty may."""
        return self.allowed_bytes is not None or self.ended

    @property
    def much_is_left(self) -> bool:
        """Whether more may still come than the connection buffers anyway."""
        small = self.declared_bytes is not None and self.declared_bytes <= _SMALL_BYTES
        return not self.ended and not small

    def allow(self, most_bytes: int, refusal: ApiError | None = None) -> None:
        """Let it be read up to so many bytes. Raises `refusal` (TooLargeError where none is given)
        for one that says it is larger; one that turns out to be meets it while it is read."""
        self._refusal = refusal or too_large(most_bytes)
        if (self.declared_bytes or 0) > most_bytes:
            raise self._refusal
        self.allowed_bytes = most_bytes

    async def receive(self) -> Message:
        """ASGI's. Raises the refusal of `allow` once more has come than was allowed."""
        if not self.is_open:
            # Only who sends a file listens here, for the client to leave, and is done soon.
            await asyncio.get_running_loop().create_future()
        message = await self._next()
        if message["type"] == "http.request":
            self._received_bytes += len(message.get("body", b""))
            self.ended = not message.get("more_body")
            if self._refusal is not None and self._received_bytes > (self.allowed_bytes or 0):
                raise WhileReading(self._refusal)
        return message

    def end(self, error: ApiError) -> None:
        """Whoever reads it, or will, meets this error unless all of it has come."""
        if self.ended:
            return
        self._end = error
        if self._reader is not None:
            self._reader.cancel()

    async def _next(self) -> Message:
        if self._end is not None and not self.ended:
            raise WhileReading(self._end)
        reader = self._reader = asyncio.current_task()
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if self._end is None or reader is None or reader.uncancel() > 0:
                raise
            raise WhileReading(self._end) from None
        finally:
            self._reader = None

    async def discard(self) -> None:
        """Throw the rest away, within LINGER_BYTES and LINGER_S."""
        left = LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_S):
                while left > 0 and not self.ended:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.ended = not message.get("more_body")
        except TimeoutError:
            pass  # it has had its time


class OpenBodies:
    """The bodies of one process that are still coming."""

    def __init__(self) -> None:
        self._open: set[RequestBody] = set()

    @contextmanager
    def holding(self, body: RequestBody) -> Iterator[None]:
        """The body counts as open while the block runs."""
        self._open.add(body)
        try:
            yield
        finally:
            self._open.discard(body)

    def end_all(self) -> None:
        """The server stops: answer those whose bodies have not come whole."""
        stopping = server_stopping()
        for body in list(self._open):
            body.end(stopping)


class BodyGate:
    """Pure ASGI, around the application: gives each request its closed `RequestBody`. An answer
    that leaves much of one unread is sent at once; what was read of the rest for a while after that
    is thrown away, then the connection ends."""

    def __init__(self, app: ASGIApp, bodies: OpenBodies) -> None:
        self.app = app
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = RequestBody(scope, receive)
        scope.setdefault("state", {})["body"] = body
        if body.ended:
            await self.app(scope, body.receive, send)
            return
        with self._bodies.holding(body):
            closing = _closing(body, send) if body.much_is_left else send
            await self.app(scope, body.receive, closing)


def body_of(request: Request) -> RequestBody:
    """The request's body, as `BodyGate` has made it."""
    body = request.scope["state"]["body"]
    assert isinstance(body, RequestBody)
    return body


def _closing(body: RequestBody, send: Send) -> Send:
    closes = False

    async def send_and_close(message: Message) -> None:
        nonlocal closes
        if message["type"] == "http.response.start":
            closes = body.much_is_left
            if closes:
                headers = [*message.get("headers", []), (b"connection", b"close")]
                message = {**message, "headers": headers}
        last = message["type"] == "http.response.body" and not message.get("more_body")
        if last and closes:
            await send({**message, "more_body": True})
            await body.discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return send_and_close


def too_large(most_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"The request body is larger than this route accepts ({most_bytes} bytes)."
    )


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first of this name, which is in lower case."""
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return found
