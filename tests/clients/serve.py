"""A served Tenora for the clients' tests, run with Tenora's own environment: prints where it is as
one line of JSON and serves until its input ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import httpx

from running_platform import RunningTenant, make_tenant
from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.client import Management
from tenora_bench.server import ServerUnderTest, serve
from tenora_engine.model.default_model import ensure_default_model

DATA = Path(__file__).parents[2] / ".data" / "test"


async def _tenant(server: ServerUnderTest, adapter: Path) -> tuple[RunningTenant, str]:
    tenant = await make_tenant(server, "acme", {"support": adapter})
    async with httpx.AsyncClient(base_url=server.url) as http:
        return tenant, await Management(http, server.admin_key).base_model(tenant.key)


def main() -> None:
    model = ensure_default_model(Path(os.environ.get("TENORA_TEST_DATA", DATA)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        adapter = root / "support"
        write_adapter(adapter, model, AdapterSpec("support", rank=8, seed=0, strength=0.3))
        with serve(root / "data", model, ["--dtype", "float32"]) as server:
            tenant, base = asyncio.run(_tenant(server, adapter))
            found = {"url": f"{server.url}/v1", "key": tenant.key, "model": base}
            print(json.dumps(found), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
