"""Serves what admin_ui builds: the portal at `/`, its files as small as the browser takes them, its
index for each of its pages, and the API's description at `/docs`. When it was not built, it says
so. It knows where its pages are; everything else is not found."""

from __future__ import annotations

import json
import mimetypes
import secrets
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tenora_platform.compression import accepts

PAGES = frozenset(
    {
        "overview",
        "adapters",
        "playground",
        "evaluations",
        "requests",
        "rejected",
        "usage",
        "budget",
        "credit",
        "prices",
        "invoices",
        "keys",
        "limits",
        "settings",
        "people",
        "webhooks",
        "audit",
        "account",
        "invitation",
        "operator",
    }
)
"""The first parts of the addresses of admin_ui/src/routes.tsx, which a browser may ask for: what is
below one of them is for the portal to show, or to say that there is no such page."""
DOCS = "/docs"
_NOT_BUILT = """The portal has not been built, so there is nothing to show here; the API runs.

To build it, run `make portal` in the checkout (it uses the Node.js of the virtual environment and
logs to .venv/portal.log), then reload. A wheel made by `make wheel` includes it. The API is
described at /openapi.json.
"""
_NONCE = "__TENORA_CSP_NONCE__"
"""What stands for the nonce in the built pages (admin_ui/vite.config.ts)."""
_BASE = '<base href="/"'
"""What stands for the path below which the built pages are."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; base-uri 'self'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""Scripts are files of ours, and nothing else is run. Mantine writes styles into the page, under
the nonce; pictures may be in the style sheets themselves."""
_FILES_POLICY = "default-src 'none'; frame-ancestors 'none'"
_UNUSED = ("camera", "display-capture", "geolocation", "microphone", "midi", "payment", "usb")
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": ", ".join(f"{each}=()" for each in _UNUSED),
}
_HTTPS_ONLY = "max-age=31536000"
"""For a year, browsers do not come back without TLS. Other hosts of the domain are not ours."""
_PRELOADS = "preloads.json"
"""Each page's address to the files that it loads (admin_ui/preloads.mjs)."""
_SESSION = "auth/session"
"""What the portal asks first (admin_ui/src/api/session.ts), asked before it runs."""
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
"""The smallest first: how a file is sent, and what its name then ends with (admin_ui/compress.mjs
has made it beside the file)."""
_KINDS = mimetypes.MimeTypes()  # what Python knows, whatever the system says
_KINDS.add_type("font/woff2", ".woff2")
_KINDS.add_type("text/plain", ".md")


class Portal:
    """Files under `folder`, looked up per request so that a build is seen without a restart.
    `secure`: people reach it by https alone; `prefix`: below this path, as `/tenora`."""

    def __init__(self, folder: Path, *, secure: bool = False, prefix: str = "") -> None:
        self._folder = folder.resolve()
        self._base = f"{prefix}/"
        self._always = _ALWAYS | ({"strict-transport-security": _HTTPS_ONLY} if secure else {})

    @property
    def built(self) -> bool:
        return (self._folder / "index.html").is_file()

    def instead_of(self, not_found: ASGIApp) -> ASGIApp:
        """An ASGI application for what no route matched."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await not_found(scope, receive, send)
                return
            if scope["method"] not in ("GET", "HEAD"):
                raise HTTPException(404)
            asked = Headers(scope=scope)
            response = self._response(scope["path"], asked)
            response.headers.update(self._always)
            response.headers.setdefault("content-security-policy", _FILES_POLICY)
            await response(scope, receive, send)

        return app

    def _response(self, path: str, asked: Headers) -> Response:
        page = self._page(path.rstrip("/") or "/")
        if page is not None and not page.is_file():
            return PlainTextResponse(_NOT_BUILT, status_code=503)
        file = page or self._file(path)
        if file is None and self.built and is_for_a_person(path, asked):
            # The portal says that there is no such page, and where the others are.
            return self._html(self._folder / "index.html", "", status=404)
        if file is None:
            raise HTTPException(404)
        if file.suffix != ".html":
            return _sent_as(file, asked)
        return self._html(file, "" if file.name == "docs.html" else self._preloads(path))

    def _page(self, path: str) -> Path | None:
        if path == DOCS:
            return self._folder / "docs.html"
        is_page = path == "/" or path.removeprefix("/").partition("/")[0] in PAGES
        return self._folder / "index.html" if is_page else None

    def _preloads(self, path: str) -> str:
        """What the browser is to fetch beside the page's first script instead of after it."""
        try:
            pages = json.loads((self._folder / _PRELOADS).read_bytes())
        except FileNotFoundError:
            return ""
        fitting = (files for address, files in pages.items() if _fits(path, address))
        asked = f'<link rel="preload" as="fetch" href="{self._base}{_SESSION}" crossorigin>'
        return asked + "".join(map(self._preload, next(fitting, ())))

    def _preload(self, file: str) -> str:
        kind = "stylesheet" if file.endswith(".css") else "modulepreload"
        return f'<link rel="{kind}" href="{self._base}{file}" crossorigin>'

    def _html(self, file: Path, links: str, status: int = 200) -> Response:
        """The page under a policy and nonce of its own. Never kept: a page from before would come
        with the nonce of then."""
        nonce = secrets.token_urlsafe(16)
        headers = {
            "content-security-policy": _POLICY.format(nonce=nonce),
            "cache-control": "no-store",
            "cross-origin-opener-policy": "same-origin",
            "x-frame-options": "DENY",
        }
        page = file.read_text(encoding="utf-8").replace(_NONCE, nonce)
        page = page.replace(_BASE, f'<base href="{self._base}"', 1)
        page = page.replace("</head>", f"{links}</head>", 1)
        return HTMLResponse(page, status_code=status, headers=headers)

    def _file(self, path: str) -> Path | None:
        """The file of that name, or None. Raises 404 for what can be no name."""
        try:
            file = (self._folder / path.lstrip("/")).resolve()
            return file if file.is_relative_to(self._folder) and file.is_file() else None
        except (ValueError, OSError, RuntimeError) as odd:  # NUL; too long; a loop of links
            raise HTTPException(404) from odd


def _sent_as(file: Path, asked: Headers) -> Response:
    """The file in the smallest form that is there and taken; nothing again for who has it."""
    kind, _ = _KINDS.guess_type(file.name)
    # Vite puts a content hash into the names of assets: they never change.
    age = "max-age=31536000, immutable" if "assets" in file.parts else "no-cache"
    headers = {"cache-control": f"public, {age}", "vary": "accept-encoding"}
    for encoding, ending in _ENCODINGS:
        smaller = file.with_name(file.name + ending)
        if accepts(asked.get("accept-encoding", ""), encoding) and smaller.is_file():
            file, headers["content-encoding"] = smaller, encoding
            break
    status = file.stat()
    # Of another encoding it is another one, as it has to be: that file has another size.
    headers["etag"] = etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
    known = asked.get("if-none-match", "")
    if etag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    return FileResponse(file, media_type=kind or "text/plain", headers=headers, stat_result=status)


def _fits(path: str, address: str) -> bool:
    """Whether the path is of that address, whose parts stand for any where they begin with `:`."""
    parts, wanted = path.strip("/").split("/"), address.strip("/").split("/")
    return len(parts) == len(wanted) and all(
        has == needs or needs.startswith(":") for has, needs in zip(parts, wanted, strict=True)
    )


def is_for_a_person(path: str, asked: Headers) -> bool:
    """Whether a browser opens the address as a page; programs ask the API's for JSON."""
    is_page = "text/html" in asked.get("accept", "")
    return is_page and not path.startswith(("/v1/", "/admin/v1/", "/auth/", "/assets/"))
