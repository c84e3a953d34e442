"""The session's cookie: how it is set and taken away, and when a request may be by it. It knows
requests, not whose a session is."""

from __future__ import annotations

import structlog
from fastapi import Request, Response

from tenora_platform.errors import ForbiddenError
from tenora_platform.people.sessions import COOKIE, SECURE_COOKIE, Sessions

CSRF_HEADER = "x-csrf-token"
KEY_HEADER = "x-api-key"
TENANT_HEADER = "x-tenora-tenant"
UNATTENDED_HEADER = "x-tenora-unattended"
"""What the portal sends while nobody has touched the page for a while."""
_log = structlog.get_logger(__name__)
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def names_a_key(request: Request) -> bool:
    """Whether the request is by a key, known or not, and so by no session."""
    return "authorization" in request.headers or bool(request.headers.get(KEY_HEADER))


def session_token(request: Request, sessions: Sessions) -> str | None:
    """The cookie's, if the request is by a session: one that names a key is by that, and of
    one that a page of another origin made the cookie does not count. Raises ForbiddenError for
    what would change something without the session's CSRF token."""
    token = kept_token(request)
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


def is_secure(request: Request) -> bool:
    """Whether browsers reach us by https, as the public URL or a trusted proxy says."""
    settings = request.app.state.tenora.settings
    return request.url.scheme == "https" or str(settings.base_url).startswith("https://")


def kept_token(request: Request) -> str | None:
    """The token in the session's cookie."""
    return request.cookies.get(SECURE_COOKIE if is_secure(request) else COOKIE)


def is_use(request: Request) -> bool:
    """Whether a request keeps its session open. A live stream does not, nor what a page fetches
    while nobody is there."""
    return UNATTENDED_HEADER not in request.headers and "text/event-stream" not in (
        request.headers.get("accept", "")
    )


def set_session(request: Request, response: Response, token: str) -> None:
    """Set the cookie for as long as the browser runs; the server ends the session sooner."""
    secure = is_secure(request)
    if not secure and request.headers.get("x-forwarded-proto") == "https":
        _log.warning(
            "a proxy speaks https, but the session's cookie is not secure: set TENORA_PUBLIC_URL "
            "to the https address, or name the proxy in TENORA_TRUSTED_PROXIES"
        )
    name = SECURE_COOKIE if secure else COOKIE
    response.set_cookie(name, token, path="/", httponly=True, samesite="lax", secure=secure)


def drop_session(request: Request, response: Response) -> None:
    """Take the cookie away, under both of its names."""
    secure = is_secure(request)
    for name in (COOKIE, SECURE_COOKIE) if secure else (COOKIE,):
        response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=secure)
