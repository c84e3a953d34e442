"""Pure ASGI layer: a management POST with an `Idempotency-Key` is done once. Its first status and
body are given again to whoever sends the same; another body is a conflict. It knows who asks and
what was answered, not what is managed."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog
from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenora_platform.auth import current_admin, current_tenant
from tenora_platform.bodies import body_of, header_of
from tenora_platform.commits import counting
from tenora_platform.db import Database
from tenora_platform.errors import (
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    response_of,
)
from tenora_platform.idempotency import repository
from tenora_platform.idempotency.body import HashedBody
from tenora_platform.outages import first_line, outage_of
from tenora_platform.request_places import RequestPlaces
from tenora_platform.secret import ServerSecret

IN_FLIGHT = timedelta(minutes=10)
"""What has run for longer has died: no management request takes so long."""
ANSWER_BYTES_MAX = 1024 * 1024
WITHOUT = (
    "/v1/chat/",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/tokenize",
    "/v1/detokenize",
)
"""Inference is done as often as it is asked for, and its answers are streams."""
_KEY = re.compile(rb"^[\x21-\x7e]{1,255}$")
_log = structlog.get_logger(__name__)


class Authority(msgspec.Struct, frozen=True):
    """What the caller might do. `role`: the operator's, or a person's at their tenant."""

    role: str | None = None
    scopes: tuple[str, ...] = ()

    def covers(self, other: Authority) -> bool:
        """Whether who has this may still have what was answered under the other."""
        same = self.role == other.role or self.role == "owner"
        return same and set(other.scopes) <= set(self.scopes)


class _Answer(msgspec.Struct, frozen=True):
    """`under`: None of one kept by a version that did not note it, which nobody gets again."""

    status: int
    content_type: str
    body: bytes
    under: Authority | None = None


@dataclass(frozen=True)
class _Request:
    """A POST that is to be done once."""

    caller_id: str
    tenant_id: str | None  # None: the operator's
    key: str
    target: str
    authority: Authority

    def session(self, db: Database) -> AbstractAsyncContextManager[AsyncSession]:
        return db.admin_session() if self.tenant_id is None else db.tenant_session(self.tenant_id)


class Idempotency:
    """Innermost of the layers: it asks who the caller is before the route does, and reads no body
    that the route would not."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key_of(scope)
        if key is None:
            await self.app(scope, receive, send)
            return
        try:
            request = await _request(scope, key)
        except (ApiError, SQLAlchemyError):
            await self.app(scope, receive, send)  # the route says the same, as it says it always
            return
        try:
            await self._once(request, scope, receive, send)
        except ApiError as error:
            await response_of(error)(scope, receive, send)

    async def _once(self, request: _Request, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises BadRequestError, ConflictError or UnavailableError before anything was done."""
        if not _KEY.match(request.key.encode("latin-1")):
            raise BadRequestError(
                "An Idempotency-Key must have 1 to 255 printable ASCII characters and no spaces.",
                code="invalid_idempotency_key",
            )
        state = scope["app"].state.tenora
        body = HashedBody(receive, header_of(scope, b"content-type") or b"")
        books = _Books(state.db, state.secret, request)
        first = await _begun(books, state.places, request.tenant_id)
        if first is None:
            await self._run(books, body, scope, send)
        else:
            body_of(Request(scope)).allow(
                state.settings.max_upload
            )  # to compare it, not to keep it
            answer = await books.answer_again(first, body)
            headers = {"idempotency-replayed": "true"}
            response = Response(answer.body, answer.status, headers, answer.content_type)
            await response(scope, receive, send)

    async def _run(self, books: _Books, body: HashedBody, scope: Scope, send: Send) -> None:
        answer = _Recorded(send)
        with counting() as commits:
            try:
                await self.app(scope, body.receive, answer.send)
            finally:
                whole = answer.whole() if body_of(Request(scope)).is_open else None
                if whole is not None and _settled(whole.status) and await _came_whole(body):
                    await books.finish(body.sha256(), whole)
                elif commits.count and (whole is None or whole.status >= 500):
                    await books.leave_unknown()
                else:
                    await books.forget()
                await answer.release()


async def _begun(
    books: _Books, places: RequestPlaces, tenant_id: str | None
) -> repository.First | None:
    """`books.begin`, in one of the tenant's places: the route takes another one later. Raises
    RateLimitedError."""
    if tenant_id is None:
        return await books.begin()
    place = places.place(tenant_id)
    await place.enter()
    try:
        return await books.begin()
    finally:
        place.leave()


class _Recorded:
    """A `send` that holds an answer back until it is known to be remembered."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: list[Message] = []
        self._bytes = 0
        self._complete = False
        self._passing = False  # too large to be held

    async def send(self, message: Message) -> None:
        if self._passing:
            await self._send(message)
            return
        self._held.append(message)
        self._bytes += len(message.get("body", b""))
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        self._complete = self._complete or ends
        if self._bytes > ANSWER_BYTES_MAX:
            self._passing = True
            await self.release()

    async def release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            await self._send(message)

    def whole(self) -> _Answer | None:
        if not self._complete or self._passing:
            return None
        start, *bodies = self._held
        if (b"x-should-retry", b"true") in start["headers"]:
            return None  # time mends it
        kinds = [value for name, value in start["headers"] if name.lower() == b"content-type"]
        kind = kinds[0].decode("latin-1") if kinds else "application/json"
        return _Answer(start["status"], kind, b"".join(each.get("body", b"") for each in bodies))


class _Books:
    """The row of one key. Raises UnavailableError where nothing has been done yet and the database
    is away; what fails afterwards is logged, and the key stays as one of unknown outcome."""

    def __init__(self, db: Database, secret: ServerSecret, request: _Request) -> None:
        self._db = db
        self._secret = secret
        self._request = request

    async def begin(self) -> repository.First | None:
        request = self._request
        try:
            async with request.session(self._db) as session:
                return await repository.begin(
                    session, request.caller_id, request.key, request.tenant_id, request.target
                )
        except SQLAlchemyError as error:
            outage = outage_of(error)
            if outage is None:
                raise
            raise outage from error

    async def answer_again(self, earlier: repository.First, body: HashedBody) -> _Answer:
        """Raises ConflictError unless this is the same request as the first, and that is over;
        ForbiddenError for who has lost what it was made with: the answer may hold a secret."""
        first = earlier.row
        if first.target != self._request.target:
            raise _another("route")
        if first.answer is None:
            if earlier.age < IN_FLIGHT:
                raise ConflictError(
                    "The first request with this Idempotency-Key is still running. Try "
                    "again when it has finished.",
                    code="idempotency_key_in_use",
                    retry=True,
                    headers={"retry-after-ms": "1000"},
                )
            raise ConflictError(
                "The first request with this Idempotency-Key was interrupted and may or may not "
                "have been carried out. Check, and if it was not, send it again with a new key.",
                code="idempotency_outcome_unknown",
            )
        if not await _came_whole(body) or body.sha256() != first.body_sha256:
            raise _another("body")
        try:
            answer = msgspec.msgpack.decode(self._lock().decrypt(first.answer), type=_Answer)
        except InvalidToken:
            raise ConflictError(
                "The stored answer for this Idempotency-Key can no longer be read, because the "
                "server's secret has changed.",
                code="idempotency_outcome_unknown",
            ) from None
        if answer.under is None or not self._request.authority.covers(answer.under):
            raise ForbiddenError(
                "The first request with this Idempotency-Key was made with scopes or a role that "
                "you do not have any more, so its answer is not given again.",
                code="idempotency_authority_lost",
            )
        return answer

    async def finish(self, body_sha256: str, answer: _Answer) -> None:
        request = self._request
        answer = msgspec.structs.replace(answer, under=request.authority)
        sealed = self._lock().encrypt(msgspec.msgpack.encode(answer))
        try:
            async with request.session(self._db) as session:
                await repository.finish(
                    session, request.caller_id, request.key, body_sha256, sealed
                )
        except SQLAlchemyError as error:
            _log.error(
                "answer not stored for its Idempotency-Key",
                target=request.target,
                why=first_line(error),
            )

    async def leave_unknown(self) -> None:
        """Something was committed, and the answer does not say what: nobody does it again."""
        request = self._request
        try:
            async with request.session(self._db) as session:
                await repository.give_up(session, request.caller_id, request.key, IN_FLIGHT)
        except SQLAlchemyError as error:
            _log.warning("Idempotency-Key not marked", target=request.target, why=first_line(error))

    async def forget(self) -> None:
        request = self._request
        try:
            async with request.session(self._db) as session:
                await repository.forget(session, request.caller_id, request.key)
        except SQLAlchemyError as error:
            _log.warning(
                "Idempotency-Key not released", target=request.target, why=first_line(error)
            )

    def _lock(self) -> Fernet:
        return Fernet(urlsafe_b64encode(self._secret.key("idempotency")))


def _key_of(scope: Scope) -> str | None:
    """The key of a management POST, if it has one."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    path = scope["path"]
    if not path.startswith(("/v1/", "/admin/v1/")) or path.startswith(WITHOUT):
        return None
    key = header_of(scope, b"idempotency-key")
    return None if key is None else key.decode("latin-1")


async def _request(scope: Scope, key: str) -> _Request:
    """Raises UnauthorizedError and ForbiddenError."""
    query = scope["query_string"].decode("latin-1")
    target = f"{scope['path']}?{query}" if query else scope["path"]
    if scope["path"].startswith("/admin/"):
        admin = await current_admin(Request(scope))
        return _Request(admin.actor, None, key, target, Authority(admin.role))
    tenant = await current_tenant(Request(scope))
    # Of each of a person's tenants: a session of one sees no rows of another.
    caller_id = tenant.key_id if tenant.role is None else f"{tenant.key_id}@{tenant.tenant_id}"
    authority = Authority(tenant.role, tenant.scopes)
    return _Request(caller_id, tenant.tenant_id, key, target, authority)


async def _came_whole(body: HashedBody) -> bool:
    try:
        return await body.read_to_end()
    except HTTPException:
        return False  # larger than its route takes


def _settled(status: int) -> bool:
    """Whether the same request would be answered the same again: not what failed on our side, and
    not what time mends."""
    return status < 500 and status not in (408, 429)


def _another(what: str) -> ConflictError:
    return ConflictError(
        f"This Idempotency-Key was already used for a request with another {what}. Use a new "
        "key for a new request.",
        code="idempotency_key_reused",
    )
