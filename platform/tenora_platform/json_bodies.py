"""JSON bodies: parsed quickly, for nobody else is served meanwhile, and no more of them than a
count of their values and of their keys allows. Knows JSON, not what it means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import Request
from pydantic_core import from_json
from starlette.types import Scope

from tenora_engine.printable import brief
from tenora_platform.bodies import body_of, header_of
from tenora_platform.errors import ApiError, BadRequestError, MediaTypeError, WhileReading
from tenora_platform.request_places import Place
from tenora_platform.texts import has_odd_number, keys_in, odd_in, odd_numbers_in

DEPTH_MAX = 200  # the parser's own
KEYS_MAX = 32_768
"""Of all objects of a body together. Each that is like no other takes 2 us to parse."""
LARGE_BYTES = 256 * 1024
"""From here a body is read beside the event loop: the parser holds Python's lock for some ms only,
what is counted before and after it takes several times as long."""
NAMED_BYTES = 65_536
"""Up to here what is wrong with a body is looked for a second time, to say where it is."""

_UNSAID = ("", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain")
"""What clients send where nobody has told them a content type: curl's `-d` says it is a form."""


def read_as_json(scope: Scope) -> None:
    """Makes the content type of a route's JSON body JSON where the client has not said another. A
    session's cookie does not count without its CSRF token, so that no form of a foreign page gains
    by it. Raises MediaTypeError."""
    said = (header_of(scope, b"content-type") or b"").decode("latin-1")
    kind = said.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind not in _UNSAID:
        raise MediaTypeError(
            f"This route needs JSON, but the content-type header is {kind[:100]!r}. Send "
            "content-type: application/json.",
            param="content-type",
        )
    others = [header for header in scope["headers"] if header[0] != b"content-type"]
    scope["headers"] = [*others, (b"content-type", b"application/json")]


class JsonRequest(Request):
    """A request whose `json` is `read_json`'s. Its `place` is left while its body comes; `beside`
    does what a large one needs while others are served."""

    place: Place | None = None
    beside: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread

    async def stream(self) -> AsyncGenerator[bytes, None]:
        if self.place is not None:
            self.place.leave()
        async for piece in super().stream():
            yield piece
        if self.place is not None:
            try:
                await self.place.enter()
            except ApiError as error:
                raise WhileReading(error) from error

    @property
    def asked(self) -> Any:
        """The body's JSON as far as it was read; None before."""
        return getattr(self, "_json", None)

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            try:
                body = await self.body()
                read = partial(read_json, body, body_of(self).values_max)
                self._json = read() if len(body) < LARGE_BYTES else await self.beside(read)
            except ApiError as error:
                raise WhileReading(error) from error
        return self._json


def read_json(body: bytes, values_max: int) -> Any:
    """The value of a JSON text of at most about `values_max` values (commas and brackets within
    texts count too: to tell them apart takes longer than to parse). Raises BadRequestError."""
    count = body.count(b",") + body.count(b"[") + body.count(b"{")
    if count > values_max:
        raise BadRequestError(
            f"The JSON body has {count} commas and opening brackets; at most {values_max} "
            "are allowed.",
            code="json_too_large",
        )
    refuse_many_keys(body)
    try:
        # 4 MB of text take 0.3 ms by this parser and 3 by the standard library's.
        value = from_json(body, cache_strings="keys")
    except ValueError as error:
        if "recursion limit" in str(error):
            raise BadRequestError(
                f"The JSON body is nested more than {DEPTH_MAX} levels deep.", code="json_too_deep"
            ) from error
        if len(body) > NAMED_BYTES:
            raise BadRequestError(
                f"The request body is not valid JSON in UTF-8: {brief(error)}.",
                code="invalid_json",
            ) from error
    else:
        if len(body) <= NAMED_BYTES:
            return refuse_odd(value)
        # To go through a value takes as long as to look at 64 bytes.
        if (count * 64 < len(body) or odd_numbers_in(body)) and has_odd_number(value):
            raise BadRequestError(
                "The body has a number that is not finite, or an integer of more than 64 bits; "
                "send a smaller one, or a string.",
                code="invalid_value",
            )
        return value
    return _read_slowly(body)


def refuse_many_keys(text: bytes) -> None:
    """Raises BadRequestError for a JSON text whose objects have too many keys."""
    keys = keys_in(text, KEYS_MAX)
    if keys > KEYS_MAX:
        raise BadRequestError(
            f"The JSON has {keys} keys; at most {KEYS_MAX} are allowed.", code="json_too_large"
        )


def refuse_odd(value: Any, param: str = "") -> Any:
    """The value of a body, or of its field `param`. Raises BadRequestError that names what in it no
    answer, no row and no other process could take."""
    odd = odd_in(value)
    if odd is None:
        return value
    place = param + odd.place
    raise BadRequestError(
        f"{brief(place) or 'The body'} {odd.reason}.",
        param=place[:200] or None,
        code="invalid_value",
    )


def _read_slowly(body: bytes) -> Any:
    """UTF-16 and UTF-32 are read too; a lone surrogate is named. Raises BadRequestError."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError("The request body is not valid JSON.", code="invalid_json") from error
    return refuse_odd(value)
