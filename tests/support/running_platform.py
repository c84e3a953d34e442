"""What the end-to-end tests hold of a platform that really runs: its server, its tenants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tenora_bench.client import Management
from tenora_bench.server import ServerUnderTest


@dataclass(frozen=True)
class RunningTenant:
    id: str
    key: str
    adapters: dict[str, Path]  # name -> PEFT folder


@dataclass(frozen=True)
class Running:
    server: ServerUnderTest
    model_dir: Path
    base_model: str
    data_dir: Path
    acme: RunningTenant
    globex: RunningTenant

    @property
    def api(self) -> str:
        return f"{self.server.url}/v1"

    def admin(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self.call(self.server.admin_key, method, path, **kwargs)

    def call(self, key: str, method: str, path: str, **kwargs: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.request(
            method, f"{self.server.url}{path}", headers=headers, timeout=60, **kwargs
        )


async def make_tenant(
    server: ServerUnderTest, name: str, adapters: dict[str, Path]
) -> RunningTenant:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        management = Management(http, server.admin_key)
        await management.open_plan("e2e")
        body = {"name": name, "plan": "e2e"}
        tenant = await management.call("POST", "/admin/v1/tenants", server.admin_key, json=body)
        path = f"/admin/v1/tenants/{tenant['id']}/api_keys"
        made = await management.call("POST", path, server.admin_key, json={"name": "e2e"})
        for adapter, folder in adapters.items():
            await management.upload(made["key"], adapter, folder)
    return RunningTenant(tenant["id"], made["key"], adapters)


def yesterday() -> str:
    """A start that no test's usage lies before."""
    return (datetime.now(UTC) - timedelta(days=1)).isoformat()
