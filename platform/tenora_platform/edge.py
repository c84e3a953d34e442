"""What every request passes before anything of its body is read: whose key it is, what that key
may do, how large the body may be, limits and budget. A route says it by the dependencies of its
signature; what those ask, and in which order, is theirs."""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.params import Form
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse
from starlette.types import Scope

from tenora_platform.asking import Asker, asking
from tenora_platform.bodies import body_of
from tenora_platform.commits import repeated
from tenora_platform.contexts import TenantContext
from tenora_platform.errors import ApiError, WhileReading
from tenora_platform.json_bodies import JsonRequest, read_as_json
from tenora_platform.request_places import Place, RequestPlaces
from tenora_platform.turns import Turns

BODY_BYTES_MAX = 1024**2
"""Of routes that say nothing else."""

ASKED_AGAIN_AFTER_S = 0.05
"""A body that took longer than this to come is not acted on by an identity from before it."""
_READS = ("GET", "HEAD", "OPTIONS")

T = TypeVar("T")


class BeforeBody(Generic[T]):
    """A dependency that needs the request's head only, and so is asked before the body is read;
    once in a request, whoever depends on it. What `is_right` is asked again after a body that was
    slow: who holds one back does not keep the right that they began with. Use it as a decorator."""

    __name__: str

    def __init__(
        self,
        check: Callable[[Request], Awaitable[T]],
        *,
        admits: bool = False,
        is_right: bool = False,
        asker: Callable[[T], Asker] | None = None,
    ) -> None:
        functools.update_wrapper(self, check)
        self._check = check
        self.admits = admits  # requests of inference
        self.is_right = is_right
        self.asker = asker  # of what says who asks: as whom the request writes

    async def __call__(self, request: Request) -> T:
        answers = _answers(request)
        if self not in answers:
            answers[self] = await self._check(request)
        answer: T = answers[self]
        return answer


def asked_again(check: Callable[[Request], Awaitable[T]]) -> BeforeBody[T]:
    """A `BeforeBody` that says whether the request may come in. As a decorator."""
    return BeforeBody(check, is_right=True)


def identity(
    asker: Callable[[T], Asker],
) -> Callable[[Callable[[Request], Awaitable[T]]], BeforeBody[T]]:
    """A decorator for a `BeforeBody` that says who asks: `asker` is as whom they write."""
    return lambda check: BeforeBody(check, is_right=True, asker=asker)


def _answers(request: Request) -> dict[BeforeBody[Any], Any]:
    answers: dict[BeforeBody[Any], Any] = request.scope["state"].setdefault("before_body", {})
    return answers


async def ask_again(request: Request) -> None:
    """Whether what let the request in still does, now that its body has come. Raises as that."""
    answers = _answers(request)
    rights = [check for check in answers if check.is_right]
    for check in rights:
        del answers[check]
    with asking(None):
        for check in rights:
            await check(request)


def _asker(request: Request) -> Asker | None:
    """Of a request that changes something. Inference changes nothing of its asker's choosing: what
    it has used is written down whatever becomes of them."""
    if request.method in _READS or is_inference(request.scope):
        return None
    askers = (each.asker(said) for each, said in _answers(request).items() if each.asker)
    return next(askers, None)


class _Read(JsonRequest):
    """A request as FastAPI reads it: its body whole, before any dependency is asked."""

    async def body(self) -> bytes:
        if hasattr(self, "_body"):
            return self._body
        began_s = time.monotonic()
        content = await super().body()
        if time.monotonic() - began_s > ASKED_AGAIN_AFTER_S:
            try:
                await ask_again(self)
            except ApiError as error:
                raise WhileReading(error) from error
        return content


class EdgeRoute(APIRoute):
    """The class of all our routes, `APIRouter(route_class=EdgeRoute)`. FastAPI reads a body before
    it asks for anything; this asks what is `BeforeBody` first, in the order of the signature, then
    opens the body, whose JSON `json_bodies` reads. A route of another class cannot read one. What
    is no inference waits for one of its tenant's places; while its body comes, it has none."""

    serves_inference: bool

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        read_and_answer = super().get_route_handler()
        checks = tuple(before_body(self.dependant))
        self.serves_inference = any(check.admits for check in checks)
        field = self.body_field
        takes_json = field is not None and not isinstance(field.field_info, Form)

        async def handle(request: Request) -> Response:
            for check in checks:
                await check(request)
            body = body_of(request)
            if body.allowed_bytes is None:
                body.allow(BODY_BYTES_MAX)
            if takes_json and not body.ended:
                read_as_json(request.scope)
            # What is read as it comes comes once.
            again = body.ended or takes_json
            answering = partial(repeated, read_and_answer) if again else read_and_answer
            read = _Read(request.scope, request.receive)
            read.beside = partial(_beside, request)
            place = None if self.serves_inference else _place(request)
            read.place = place
            try:
                if place is not None and (body.ended or not takes_json):
                    await place.enter()
                with asking(_asker(request)):
                    answer = await answering(read)
                if place is not None and isinstance(answer, StreamingResponse):
                    _make_in_places(answer, place)
                if answer.media_type == "text/event-stream":  # it may fail yet
                    request.scope["state"]["asked"] = read.asked
                return answer
            except Exception:
                request.scope["state"]["asked"] = read.asked
                raise
            finally:
                if place is not None:
                    place.leave()

        return handle


def _place(request: Request) -> Place | None:
    """The tenant's; the operator waits for nobody."""
    tenant_id = _tenant_id(request)
    if tenant_id is None:
        return None
    places: RequestPlaces = request.app.state.tenora.places
    return places.place(tenant_id)


def _tenant_id(request: Request) -> str | None:
    """Of who asks; None for the operator and for nobody."""
    known = request.scope["state"].get("before_body", {}).values()
    return next((each.tenant_id for each in known if isinstance(each, TenantContext)), None)


async def _beside(request: Request, work: Callable[[], Any]) -> Any:
    """What `work` makes of a large body, one body of a tenant at a time."""
    turns: Turns = request.app.state.tenora.large_bodies
    return await turns.run(_tenant_id(request) or "", work)


def _make_in_places(answer: StreamingResponse, place: Place) -> None:
    """An export is as much work as the page it begins with, again and again. What only waits for
    news takes no place."""
    if answer.media_type != "text/event-stream":
        answer.body_iterator = place.pieces(answer.body_iterator)


def is_inference(scope: Scope) -> bool:
    """Whether a request is for a route of inference, whoever asks and whatever comes of it."""
    return bool(getattr(scope.get("route"), "serves_inference", False))


def is_clients(scope: Scope, status: int) -> bool:
    """Whether an answer is of a request for inference, or of what such a client got wrong on the
    way to one: a model or a response that there is not, a route that there is not."""
    if is_inference(scope):
        return True
    path = scope["path"]
    if status < 400 or not path.startswith("/v1/"):
        return False
    return scope.get("route") is None or path.startswith(_ON_THE_WAY)


_ON_THE_WAY = ("/v1/models", "/v1/responses")


def before_body(dependant: Dependant) -> Iterator[BeforeBody[Any]]:
    """What of these dependencies, and of theirs, is asked before the body is read."""
    for dependency in dependant.dependencies:
        yield from before_body(dependency)
        if isinstance(dependency.call, BeforeBody):
            yield dependency.call
