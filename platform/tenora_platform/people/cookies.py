"""The session's cookie: how it is set and taken away, and when a request may be by it. It knows
requests, not whose a session is."""

from __future__ import annotations

from fastapi import Request, Response

from tenora_platform.errors import ForbiddenError
from tenora_platform.people.sessions import COOKIE, Sessions

CSRF_HEADER = "x-csrf-token"
KEY_HEADER = "x-api-key"
TENANT_HEADER = "x-tenora-tenant"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def names_a_key(request: Request) -> bool:
    """Whether the request is by a key, known or not, and so by no session."""
    return "authorization" in request.headers or bool(request.headers.get(KEY_HEADER))


def session_token(request: Request, sessions: Sessions) -> str | None:
    """The cookie's, if the request is by a session: one that names a key is by that, and of
    one that a page of another origin made the cookie does not count. Raises ForbiddenError for
    what would change something without the session's CSRF token."""
    token = request.cookies.get(COOKIE)
    if not token or names_a_key(request) or of_another_origin(request):
        return None
    if request.method not in SAFE_METHODS:
        require_csrf(request, sessions, token)
    return token


def require_csrf(request: Request, sessions: Sessions, token: str) -> None:
    """Raises ForbiddenError."""
    if not sessions.is_csrf_token(token, request.headers.get(CSRF_HEADER, "")):
        raise ForbiddenError(
            f"A request with a session cookie needs the header {CSRF_HEADER}, set to the "
            "csrf_token from GET /auth/session.",
            code="invalid_csrf_token",
        )


def of_another_origin(request: Request) -> bool:
    """Whether a page of another origin made it, as browsers say themselves; a link that somebody
    followed is not meant. Such a page may be allowed to call us (CORS), with keys of its own."""
    site = request.headers.get("sec-fetch-site")
    return (
        site in ("cross-site", "same-site") and request.headers.get("sec-fetch-mode") != "navigate"
    )


def set_session(response: Response, token: str, *, secure: bool) -> None:
    """For as long as the browser runs; the server ends it sooner."""
    response.set_cookie(COOKIE, token, path="/", httponly=True, samesite="lax", secure=secure)


def drop_session(response: Response, *, secure: bool) -> None:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax", secure=secure)
