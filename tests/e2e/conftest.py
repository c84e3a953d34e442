"""The whole of Tenora, really running: `tenora serve` in float32 with embedded servers, the default
base model and two API processes, and two tenants who each own an adapter called `support`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from peft_reference import Reference
from running_platform import Running, make_tenant
from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.client import Management
from tenora_bench.server import serve

_shared = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """What the files share ends with the last of them; it would idle beside all other tests."""
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        _shared.close()


@pytest.fixture(scope="session")
async def running(base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Running:
    root = tmp_path_factory.mktemp("e2e")
    folders = {}
    for number, (name, rank) in enumerate({"acme": 8, "globex": 16, "extra": 4}.items()):
        folders[name] = root / name
        write_adapter(folders[name], base_model_dir, AdapterSpec(name, rank, number, strength=0.3))
    options = ["--dtype", "float32", "--workers", "2"]
    server = _shared.enter_context(serve(root / "data", base_model_dir, options))
    acme = await make_tenant(server, "acme", {"support": folders["acme"]})
    globex = await make_tenant(
        server, "globex", {"support": folders["globex"], "extra": folders["extra"]}
    )
    async with httpx.AsyncClient(base_url=server.url) as http:
        base = await Management(http, server.admin_key).base_model(acme.key)
    return Running(server, base_model_dir, base, root / "data", acme, globex)


@pytest.fixture(scope="session")
def reference(running: Running) -> Reference:
    """transformers + peft over the same weights, in this process."""
    adapters = {
        "acme/support": running.acme.adapters["support"],
        "globex/support": running.globex.adapters["support"],
        "globex/extra": running.globex.adapters["extra"],
    }
    return Reference(running.model_dir, adapters)
