"""Pure ASGI layers about request bodies: nothing of one is read before the key is known, and never
more than its route takes. They know paths and keys, not what a body says."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenora_platform.auth import current_admin, current_tenant
from tenora_platform.errors import ApiError, ForbiddenError, TooLargeError, response_of
from tenora_platform.outages import outage_of
from tenora_platform.settings import Settings

INFERENCE = ("/v1/chat/", "/v1/completions", "/v1/responses", "/v1/embeddings")
TEXTS = ("/v1/tokenize", "/v1/detokenize")
MANAGEMENT_BYTES_MAX = 1024**2
PART_BYTES_MAX = 65 * 1024**2  # registry.uploads' largest part, and the form around it
_SMALL_BYTES = 65_536  # what a connection buffers anyway
_LINGER_S = 1.0
_LINGER_BYTES = 1024**2


class KeyFirst:
    """Asks for the key of a request with a body before anything of the body is read. Routes find
    the answer in the scope and need not ask again."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _has_body(scope):
            path = scope["path"]
            ask = current_admin if path.startswith("/admin/") else current_tenant
            try:
                if path.startswith(("/v1/", "/admin/")):
                    scope["state"]["caller"] = await ask(Request(scope))
            except ForbiddenError:
                pass  # a known key; what it may not do, the route says, or that there is none
            except ApiError as error:
                await refuse_unread(error, scope, receive, send)
                return
            except Exception as error:
                outage = outage_of(error)
                if outage is None:
                    raise
                await refuse_unread(outage, scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Refuses bodies beyond their route's size with 413, by their declared length or as they
    arrive."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = body_bytes_max(self.settings, scope["path"])
        declared = _declared_bytes(scope)
        if declared is not None and declared > limit:
            await refuse_unread(_too_large(limit), scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # Not an ApiError: FastAPI lets only this kind through while it reads a body.
                raise HTTPException(413, _too_large(limit).message)
            return message

        await self.app(scope, counted, send)


def body_bytes_max(settings: Settings, path: str) -> int:
    """The most that any method of this path reads."""
    if path.startswith("/v1/adapters"):
        return settings.max_upload
    if path.startswith("/v1/uploads/") and path.endswith("/parts"):
        return min(settings.max_upload, PART_BYTES_MAX)
    if path.startswith((*INFERENCE, *TEXTS)):
        return settings.max_body
    return min(settings.max_body, MANAGEMENT_BYTES_MAX)


async def refuse_unread(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without the body. A client that sends a large one may read its answer only after it
    has sent on for a while: little of it is thrown away, then the connection is closed."""
    declared = _declared_bytes(scope)
    response = response_of(error)
    if declared is not None and declared <= _SMALL_BYTES:
        await response(scope, receive, send)
        return
    headers = [*response.raw_headers, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body"):
                    break
    except TimeoutError:
        pass  # it has had its second
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _header(scope: Scope, name: bytes) -> bytes | None:
    found: bytes | None = next((value for key, value in scope["headers"] if key == name), None)
    return found


def _declared_bytes(scope: Scope) -> int | None:
    """None where the length is not said."""
    declared = _header(scope, b"content-length") or b""
    return int(declared) if declared.isdigit() else None


def _has_body(scope: Scope) -> bool:
    return bool(_declared_bytes(scope)) or _header(scope, b"transfer-encoding") is not None


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The body is larger than this server accepts here ({limit} bytes).")
