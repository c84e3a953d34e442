"""Answers that are worth it are sent gzipped to who takes them. Knows bytes and media types, not
what is answered; the portal's files are smaller on the disk already (`portal`)."""

from __future__ import annotations

from starlette.middleware.gzip import (
    DEFAULT_EXCLUDED_CONTENT_TYPES,
    GZipResponder,
    IdentityResponder,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from tenora_platform.bodies import header_of

BYTES_MIN = 1024
"""A packet's worth: below, nothing is gained."""
_LEVEL = 4  # a list of 100 requests, 33 kB: 7.3 kB after 0.25 ms; at 6 it is 6.9 after 0.33
_THREAD_BYTES_MIN = 64 * 1024  # 0.5 ms; beyond, others would wait for it
_AS_IT_IS = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/pdf")
_SECRET = "/auth/"


class Compression:
    """Pure ASGI around the application. Streams of events pass through untouched, each piece at
    once; so does what is under /auth/, where a length must tell nothing of a token (BREACH)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_SECRET):
            await self._app(scope, receive, send)
            return
        wanted = (header_of(scope, b"accept-encoding") or b"").decode("latin-1")
        answer: ASGIApp
        if accepts(wanted, "gzip"):
            answer = GZipResponder(
                self._app,
                BYTES_MIN,
                _LEVEL,
                thread_minimum_size=_THREAD_BYTES_MIN,
                exclude_content_types=_AS_IT_IS,
            )
        else:  # says in `vary` that another would have it smaller
            answer = IdentityResponder(self._app, BYTES_MIN, exclude_content_types=_AS_IT_IS)
        await answer(scope, receive, send)


def accepts(accept_encoding: str, encoding: str) -> bool:
    """Whether the header `Accept-Encoding` names `encoding` or anything, and does not refuse it."""
    weights: dict[str, bool] = {}
    for each in accept_encoding.lower().split(","):
        name, _, parameters = each.partition(";")
        weights[name.strip()] = not _is_zero(parameters)
    return weights.get(encoding, weights.get("*", False))


def _is_zero(parameters: str) -> bool:
    name, _, value = parameters.strip().partition("=")
    return name.strip() == "q" and not value.strip().strip("0.")
