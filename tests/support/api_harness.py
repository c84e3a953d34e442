"""What the tests of the HTTP layer hold: an application over real servers with a fake engine,
and the few calls that most tests begin with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from fake_engine import FakeEngine
from tenora_platform.app import create_app
from tenora_platform.object_store import PROBE
from tenora_platform.redis_client import redis_seal
from tenora_platform.registry.store_identity import OBJECT
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings
from tenora_platform.state import AppState

ADMIN_KEY = "admin-key-of-the-tests"
SECRET = "the-server-secret-of-all-the-tests"
SEAL = redis_seal(ServerSecret(SECRET.encode()))
STREAMS = ("/v1/events/stream", "/admin/v1/events")


def brief(path: str) -> str:
    """Of a stream that would last, what ends at once: the transport waits for whole answers."""
    return f"{path}?lasts_s=0" if path in STREAMS else path


@dataclass(frozen=True)
class TestTenant:
    __test__ = False

    id: str
    key: str
    key_id: str


@dataclass(frozen=True)
class Api:
    """An application that runs, and a client that speaks to it without a network."""

    app: FastAPI
    engine: FakeEngine
    http: httpx.AsyncClient

    @property
    def state(self) -> AppState:
        state = self.app.state.tenora
        assert isinstance(state, AppState)
        return state

    async def call(self, key: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
        return await self.http.request(method, brief(path), headers=headers, **more)

    async def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self.call(ADMIN_KEY, method, path, **more)

    async def new_tenant(
        self, name: str = "acme", plan: str = "standard", **key: Any
    ) -> TestTenant:
        """A tenant with one key; `key` goes into the key's body (scopes, expires_at)."""
        made = await self.admin("POST", "/admin/v1/tenants", json={"name": name, "plan": plan})
        assert made.status_code == 201, made.text
        tenant_id = made.json()["id"]
        path = f"/admin/v1/tenants/{tenant_id}/api_keys"
        new = await self.admin("POST", path, json={"name": "test", **key})
        assert new.status_code == 201, new.text
        return TestTenant(tenant_id, new.json()["key"], new.json()["id"])

    async def put_plan(self, name: str, limits: dict[str, Any], **plan: Any) -> None:
        made = await self.admin("PUT", f"/admin/v1/plans/{name}", json={**plan, "limits": limits})
        assert made.status_code == 200, made.text


@asynccontextmanager
async def running_api(settings: Settings, folder: Path) -> AsyncIterator[Api]:
    """An application with a fake engine, started and, at the end, stopped."""
    engine = FakeEngine(folder / "model")
    app = create_app(settings, engine=engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenora") as http:
            for _ in range(1000):
                if engine.ready or engine.start_error is not None:
                    break
                await asyncio.sleep(0)
            yield Api(app, engine, http)


def stored_objects(api: Api) -> set[str]:
    """What lies in its object store, by path, but for the record of its database, what is written
    to see whether it works, and the trash."""
    folder = api.state.settings.data_dir / "objects"
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if not path.startswith((OBJECT, PROBE, "trash/"))}
