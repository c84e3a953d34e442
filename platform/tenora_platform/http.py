"""The pure ASGI layer around all others: request ids, access metrics, and the last net for errors.
It knows HTTP, not what is served."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenora_platform.errors import ApiError, is_anthropic, response_of
from tenora_platform.ids import new_ulid
from tenora_platform.operations.metrics import Metrics
from tenora_platform.request_ids import id_in_header

_log = structlog.get_logger(__name__)
_UNLESS_SAID = {b"x-content-type-options": b"nosniff", b"cache-control": b"no-store"}
"""Headers of an answer that does not have them itself: it is what its type says, and no browser or
proxy keeps what a key may read."""


class RequestEdge:
    """Gives every request an id (`x-request-id`; a sane one of the client's is kept) and a ULID
    that is always ours, binds the id and the client's address to the log, counts and times the
    request, keeps its answer out of caches, and turns what nobody caught into a 500 that names the
    id. Nothing is buffered, so a client that goes away is seen at once."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        answered: Sequence[Callable[[Scope, int], None]],
        prefix: str = "",
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.answered = answered
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self._prefix:
            _drop_prefix(scope, self._prefix)
        ulid = new_ulid()
        request_id = id_in_header(scope) or f"req_{ulid}"
        scope.setdefault("state", {}).update(request_id=request_id, request_ulid=ulid)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                called = scope["state"]["request_id"].encode()  # by its body, it may be
                headers = [*message.get("headers", []), (b"x-request-id", called)]
                if is_anthropic(scope):
                    headers.append((b"request-id", called))
                said = {name for name, _ in headers}
                headers += [each for each in _UNLESS_SAID.items() if each[0] not in said]
                message["headers"] = headers
            await send(message)

        started = time.perf_counter()
        peer = scope.get("client")
        address = peer[0] if peer else None
        with structlog.contextvars.bound_contextvars(request_id=request_id, address=address):
            try:
                await self.app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = 499  # nobody is there to be told
            except Exception:
                _log.exception("unhandled error", path=scope["path"])
                error = ApiError(
                    f"The server failed on this request. Report the request id {request_id} "
                    "to the operator.",
                    code="internal_error",
                )
                if status:
                    scope["state"]["error"] = error
                    raise  # half of the answer is out; the server must cut the connection
                await response_of(error)(scope, receive, send_with_id)
            finally:
                status = _outcome(scope, status)
                route = scope.get("route")
                path = getattr(route, "path", "unmatched")
                elapsed_s = time.perf_counter() - started
                self.metrics.record_request(scope["method"], path, status, elapsed_s)
                for note in self.answered:
                    note(scope, status)


def _outcome(scope: Scope, status: int) -> int:
    """What an answer is counted as: one that failed after its status had been sent, as what its
    error says."""
    error: ApiError | None = scope["state"].get("error")
    return status if error is None or status >= 400 else error.status


def _drop_prefix(scope: Scope, prefix: str) -> None:
    """Take away the path below which a proxy shows us, unless the proxy has done so."""
    path = scope["path"]
    if path == prefix or path.startswith(f"{prefix}/"):
        scope["path"] = path.removeprefix(prefix) or "/"
        scope["raw_path"] = scope.get("raw_path", b"").removeprefix(prefix.encode()) or b"/"
