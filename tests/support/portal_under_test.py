"""What the browser tests hold: a platform that really runs and serves the built portal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenora_bench.server import ServerUnderTest, serve

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class PortalUnderTest:
    """A running platform that serves the built portal, its management API, and its data directory,
    in which its own Postgres runs."""

    server: ServerUnderTest
    data: Path

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, key: str, method: str, path: str, **more: Any) -> Any:
        headers = {"authorization": f"Bearer {key}"}
        reply = httpx.request(method, f"{self.url}{path}", headers=headers, timeout=60, **more)
        reply.raise_for_status()
        return reply.json()

    def admin(self, method: str, path: str, **more: Any) -> Any:
        return self.call(self.server.admin_key, method, path, **more)

    def new_tenant(self, name: str) -> tuple[str, str]:
        """The id and a key of a new tenant."""
        tenant = self.admin("POST", "/admin/v1/tenants", json={"name": name})
        path = f"/admin/v1/tenants/{tenant['id']}/api_keys"
        return tenant["id"], self.admin("POST", path, json={"name": "browser"})["key"]


@contextmanager
def running_portal(folder: Path, model: Path, *options: str) -> Iterator[PortalUnderTest]:
    """A platform of its own, with `options` of `tenora serve`; skips where no portal is built."""
    if not (REPOSITORY / "admin_ui" / "dist" / "index.html").is_file():
        pytest.skip("the portal is not built; run `make portal`")
    with serve(folder / "data", model, list(options)) as server:
        yield PortalUnderTest(server, folder / "data")
