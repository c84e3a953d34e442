"""What the browser tests hold: a platform that really runs and serves the built portal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenora_bench.server import ServerUnderTest, serve
from tenora_platform.registry.store_identity import OBJECT as STORE_RECORD

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 60.0  # only a hang takes as long


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
        _until_store_is_claimed(folder / "data")
        yield PortalUnderTest(server, folder / "data")


def _until_store_is_claimed(data: Path) -> None:
    """By the worker, some seconds after the API answers: a store without its record does not fit a
    database that a test has filled meanwhile, and no usage is stored then."""
    deadline = time.monotonic() + PATIENCE_S
    while not (data / "objects" / STORE_RECORD).exists():
        assert time.monotonic() < deadline, "the worker does not claim the object store"
        time.sleep(0.05)
