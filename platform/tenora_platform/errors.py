"""Everything that can be said with a status of 400 or more, in OpenAI's shape: one object `error`
with the four keys message, type, param, code. It knows no domain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from tenora_engine.errors import (
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    GrammarsUnavailableError,
    InvalidRequestError,
    QueueFullError,
)
from tenora_engine.printable import MESSAGE_MAX, brief
from tenora_platform.validation import in_words


class ErrorDetail(BaseModel):
    """All four keys are always present."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer with status 400 or higher."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer other than success. Subclasses fix status, type and code."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
        kept: str | None = None,
    ) -> None:
        message = brief(message, MESSAGE_MAX)
        super().__init__(message)
        self.message = message
        self.kept = kept  # in the list of rejected calls, of a message in words that are not ours
        self.tenant_id: str | None = None  # whose call it was, of one without a TenantContext
        self.param = param
        self.headers = dict(headers or {})
        self.details = dict(details or {})  # beside the four keys, for programs
        if code is not None:
            self.code = code
        if type is not None:
            self.type = type
        if status is not None:
            self.status = status

    def body(self) -> dict[str, Any]:
        """The JSON body; also what a stream sends as its `error` event."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
                **self.details,
            }
        }


class BadRequestError(ApiError):
    status = 400
    type = "invalid_request_error"


class SickWeightsError(ApiError):
    """The version's weights give logits that are no numbers. Its fault, so a roll-out counts it; a
    retry would not help."""

    code: str = "adapter_produces_nan"

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        self.headers.setdefault("x-should-retry", "false")


class DamagedAdapterError(ApiError):
    """The version's content in the object store is damaged or gone. A retry would not help."""

    code: str = "adapter_damaged"

    def __init__(self) -> None:
        super().__init__(
            "The stored content of this adapter version is damaged or missing. The operator is"
            " told; uploading the same files again restores it.",
            headers={"x-should-retry": "false"},
        )


class UnauthorizedError(ApiError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        self.headers.setdefault("www-authenticate", "Bearer")


class ForbiddenError(ApiError):
    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFoundError(ApiError):
    """Also for what is somebody else's: it must not show whether it exists."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ConflictError(ApiError):
    """409. The official client retries it unless told otherwise, and a retry would not help."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"

    def __init__(self, message: str, *, retry: bool = False, **more: Any) -> None:
        super().__init__(message, **more)
        self.headers.setdefault("x-should-retry", "true" if retry else "false")


class TooLargeError(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class MediaTypeError(ApiError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RateLimitedError(ApiError):
    """429 for a limit that frees itself after `retry_after_ms`."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_ms: int, **more: Any) -> None:
        super().__init__(message, **more)
        self.retry_after_ms = max(1, retry_after_ms)
        self.headers["retry-after-ms"] = str(self.retry_after_ms)
        self.headers["retry-after"] = str(-(-self.retry_after_ms // 1000))
        self.headers.setdefault("x-should-retry", "true")


class QuotaExceededError(ApiError):
    """429 that waiting does not mend: a budget or a quota is used up."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **more)
        self.headers["x-should-retry"] = "false"


class UnavailableError(ApiError):
    """503 while something the request needs is not there yet, or no more."""

    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_ms: int = 1000, **more: Any) -> None:
        super().__init__(message, **more)
        self.headers["retry-after-ms"] = str(retry_after_ms)
        self.headers["retry-after"] = str(-(-retry_after_ms // 1000))


def server_stopping() -> UnavailableError:
    """What a request meets that a stopping server can wait for no longer."""
    return UnavailableError(
        "The server is shutting down and ended this request early; send it again.",
        code="server_stopping",
    )


class WhileReading(HTTPException):
    """An ApiError met while a body is read: FastAPI lets only this kind through there."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.message)
        self.error = error


def from_engine(error: EngineError) -> ApiError:
    """What the engine's refusal is called at the HTTP edge."""
    if isinstance(error, ContextLengthError):
        return BadRequestError(
            str(error), param=error.param or "messages", code="context_length_exceeded"
        )
    if isinstance(error, InvalidRequestError):
        return BadRequestError(
            str(error),
            param=error.param,
            code="invalid_value",
            headers={"x-should-retry": "false"},
            kept=str(error).partition(": ")[0],  # what follows may be a grammar's or a template's
        )
    if isinstance(error, QueueFullError):
        return RateLimitedError(
            str(error), retry_after_ms=error.retry_after_ms, code="engine_overloaded"
        )
    if isinstance(error, GrammarsUnavailableError):
        return UnavailableError(str(error), code="grammars_unavailable")
    if isinstance(error, EngineUnavailableError):
        return UnavailableError(f"The engine is not ready: {error}", code="engine_unavailable")
    return ApiError(f"The engine failed: {error}", code="engine_error")


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is for a route of Anthropic's API, whose clients expect its errors and its
    `request-id`."""
    return str(scope.get("path", "")).startswith("/v1/messages")


def anthropic_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an error of Anthropic's API, `param` and `code` beside its own keys; also the
    data of a stream's `error` event."""
    said = error.body()["error"]
    said["type"] = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": said, "request_id": request_id}


class ErrorResponse(JSONResponse):
    """An error in the shape of the API at whose path it is met."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.body(), status_code=error.status, headers=error.headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["error"] = self._error  # for who counts and lists them
        if is_anthropic(scope):
            request_id = scope.get("state", {}).get("request_id", "")
            self.body = self.render(anthropic_body(self._error, request_id))
            del self.headers["content-length"]
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def response_of(error: ApiError) -> JSONResponse:
    """What is sent for an error."""
    return ErrorResponse(error)


_OF_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    503: UnavailableError,
}


def from_validation(
    error: RequestValidationError | ValidationError, within: Sequence[str | int] = ()
) -> BadRequestError:
    """One problem of a body, query or path, with `param` as a client would write it
    (`messages[0].content`); of what was made of a body, or `within` it, without the value."""
    problem, parts = _first_problem(error)
    param = ""
    for part in (*within, *parts):
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
    if problem["type"] == "json_invalid":
        return BadRequestError("The request body is not valid JSON.", code="invalid_json")
    message = in_words(problem)
    return BadRequestError(
        f"{param or 'The body'}: {message.rstrip('.')}.",
        param=param or None,
        code="missing_required_parameter" if problem["type"] == "missing" else "invalid_value",
    )


def _first_problem(
    error: RequestValidationError | ValidationError,
) -> tuple[Mapping[str, Any], Sequence[str | int]]:
    """And where it is. Where a value may be of several forms there is a problem of each: that one
    which lies deepest in the value is of the form that was meant."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return first, first["loc"]
    problems = error.errors()
    given = error.body if problems[0]["loc"][:1] == ("body",) else _UNKNOWN
    parts, forms = _place(problems[0], given)
    if forms is None:
        return problems[0], parts
    of_all = [
        (each, _place(each, given)[0])
        for each in problems
        if each["loc"][:forms] == problems[0]["loc"][:forms]
    ]
    return max(of_all, key=lambda each: len(each[1]))


_UNKNOWN = object()


def _place(problem: Mapping[str, Any], given: object) -> tuple[list[str | int], int | None]:
    """The keys and indexes on the way to a problem, without the names of the forms that a value may
    have; and where in its location the first of those stands."""
    location, parts, forms = problem["loc"], [], None
    for place, part in enumerate(location[1:], 1):
        inner = _member(given, part)
        is_missing = problem["type"] == "missing" and place == len(location) - 1
        if inner is _UNKNOWN and given is not _UNKNOWN and isinstance(part, str) and not is_missing:
            forms = place if forms is None else forms
            continue
        parts.append(part)
        given = inner
    return parts, forms


def _member(given: object, part: str | int) -> object:
    if isinstance(given, Mapping):
        return given.get(part, _UNKNOWN)
    if isinstance(given, list) and isinstance(part, int) and part < len(given):
        return given[part]
    return _UNKNOWN


def _known(error: Exception) -> ApiError:
    if isinstance(error, EngineError):
        return from_engine(error)
    if isinstance(error, RequestValidationError):
        return from_validation(error)
    if isinstance(error, WhileReading):
        return error.error
    assert isinstance(error, ApiError)
    return error


def _allowed(request: Request) -> str:
    """Every method that some route takes at this path; the router names the first route's only."""
    methods: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        path = route.path
        if path is not None and compile_path(path)[0].fullmatch(request.url.path):
            methods |= set(route.methods or ())
    return ", ".join(sorted(methods))


def install_error_handlers(app: FastAPI, who: Callable[[Request], Awaitable[object]]) -> None:
    """Every failure leaves in the same shape. What nobody foresaw is caught by
    `http.ErrorBoundary`, which knows the request's id. `who` asks whose request it is, where no
    route has asked, so that a tenant finds its own mistakes."""

    async def on_known(request: Request, error: Exception) -> JSONResponse:
        return response_of(_known(error))

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code in (404, 405) and request.url.path.startswith("/v1/"):
            with suppress(
                ApiError, SQLAlchemyError, OSError
            ):  # nobody's then; the answer is the same
                await who(request)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"There is no route {request.method} {request.url.path}."
        elif error.status_code == 405:
            message = f"{request.method} is not allowed on {request.url.path}."
        kind = _OF_STATUS.get(error.status_code)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["allow"] = _allowed(request)
        if kind is not None:
            return response_of(kind(message, headers=headers))
        client_error = error.status_code < 500
        return response_of(
            ApiError(
                message,
                status=error.status_code,
                type="invalid_request_error" if client_error else "server_error",
                code="method_not_allowed" if error.status_code == 405 else None,
                headers=headers,
            )
        )

    async def on_unstorable(request: Request, error: Exception) -> JSONResponse:
        # A NUL in a text or a number out of range, in a place that no schema looks at.
        return response_of(
            BadRequestError(
                "The request contains a value that cannot be stored (a NUL character, or a "
                "number that is out of range).",
                code="invalid_value",
            )
        )

    for kind in (ApiError, EngineError, RequestValidationError, WhileReading):
        app.add_exception_handler(kind, on_known)
    app.add_exception_handler(DataError, on_unstorable)
    app.add_exception_handler(HTTPException, on_http)
