"""Serves the built portal at `/`: its files, and its index for each of its pages. When it was not
built, it says so. It knows its own pages; everything else is not found."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

PAGES = frozenset(
    {"/", "/adapters", "/playground", "/usage", "/operator/tenants", "/operator/engine"}
)
"""The routes of admin_ui/src/App.tsx, which a browser may ask for directly."""
_NOT_BUILT = """The portal was not built, so there is nothing to show here; the API runs.

To build it: run `make portal` in the checkout (it uses the Node of the virtual environment and
writes its log to .venv/portal.log), then reload. API description: /docs and /openapi.json.
"""


class Portal:
    """Files under `folder`, looked up per request so that a build is seen without a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    @property
    def built(self) -> bool:
        return (self._folder / "index.html").is_file()

    def instead_of(self, not_found: ASGIApp) -> ASGIApp:
        """An ASGI application for what no route matched."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await not_found(scope, receive, send)
                return
            path: str = scope["path"]
            if scope["method"] not in ("GET", "HEAD"):
                raise HTTPException(404)
            await self._response(path)(scope, receive, send)

        return app

    def _response(self, path: str) -> Response:
        is_page = (path.rstrip("/") or "/") in PAGES
        if is_page and not self.built:
            return PlainTextResponse(_NOT_BUILT, status_code=503)
        file = self._file(path)
        if file is not None:
            kind, _ = mimetypes.guess_type(file.name)
            # Vite puts a content hash into the names of assets: they never change.
            age = "max-age=31536000, immutable" if "assets" in file.parts else "no-cache"
            return FileResponse(file, media_type=kind, headers={"cache-control": f"public, {age}"})
        if not is_page:
            raise HTTPException(404)
        return FileResponse(self._folder / "index.html", headers={"cache-control": "no-cache"})

    def _file(self, path: str) -> Path | None:
        """The file of that name, or None. Raises 404 for what can be no name."""
        try:
            file = (self._folder / path.lstrip("/")).resolve()
            return file if file.is_relative_to(self._folder) and file.is_file() else None
        except (ValueError, OSError, RuntimeError) as odd:  # NUL; too long; a loop of links
            raise HTTPException(404) from odd
