"""The platform under measurement: `tenora serve` with its own PostgreSQL, Valkey, worker and API
processes, at a pretend engine in a process of its own; tenants with keys, limits and an adapter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tenora_bench.adapters import write_adapters
from tenora_bench.api.load import Target
from tenora_bench.api.measure import System
from tenora_bench.api.pretend_engine import FACTORY
from tenora_bench.api.stamps import Stamps
from tenora_bench.client import managing
from tenora_bench.peers.processes import family
from tenora_bench.server import free_port, wait_ready
from tenora_engine.config import EngineConfig
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.messages import Boot

ADMIN_KEY = "bench-admin-key"
TENANTS = 4
ADAPTER = "support"
LIMITS = {
    "requests_per_min": 10_000_000,
    "tokens_per_min": 1_000_000_000,
    "parallel_requests": 10_000,
}
"""All of them counted, none of them met."""


@contextmanager
def platform(
    folder: Path, model: Path, secret: str, address: EngineAddress, stamps: Stamps, workers: int
) -> Iterator[System]:
    """Runs for as long as the block does. `address` is what the platform makes of `secret`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "tenora_platform.cli.main", "serve", "--port", str(port)]
    command += ["--data-dir", str(folder / "data"), "--model", str(model)]
    command += ["--engine", address.endpoint, "--workers", str(workers)]
    environment = {**os.environ, "TENORA_ADMIN_KEY": ADMIN_KEY, "TENORA_SECRET": secret}
    log = folder / "serve.log"
    with _engine(folder, model, address), log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(url, process, log, timeout_s=120)
            keys = asyncio.run(_tenants(url, folder, model))
            pids = tuple(pid for pid in family(process.pid) if _name(pid).startswith("tenora-api"))
            assert len(pids) == workers
            yield System(f"tenora-{workers}", Target(port, keys, ADAPTER), pids, stamps)
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _engine(folder: Path, model: Path, address: EngineAddress) -> Iterator[None]:
    config = EngineConfig(
        model=str(model),
        served_name=model.name,
        outbox_dir=str(folder / "outbox"),
        max_running=4096,
        max_waiting=4096,
        max_tenant_waiting=4096,
    )
    with (folder / "engine.log").open("wb") as log:
        engine = subprocess.Popen(
            [sys.executable, "-m", "tenora_engine.transport.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        assert engine.stdin is not None
        try:
            engine.stdin.write(msgspec.json.encode(Boot(config, address, FACTORY)) + b"\n")
            engine.stdin.flush()
            yield
        finally:
            engine.stdin.close()  # its owner is gone, it is told so, and ends
            engine.wait(timeout=30)


async def _tenants(url: str, folder: Path, model: Path) -> tuple[str, ...]:
    """Their keys. Each has an adapter of the same name, and one of its own."""
    keys = []
    adapters = write_adapters(folder / "adapters", model, TENANTS, [8])
    async with managing(url, ADMIN_KEY) as manage:
        plan = {"limits": LIMITS}
        await manage.call("PUT", "/admin/v1/plans/bench", ADMIN_KEY, json=plan)
        for number, adapter in enumerate(adapters):
            key = await manage.create_tenant(f"bench-{number}", "bench")
            await manage.upload(key, ADAPTER, adapter)
            keys.append(key)
    return tuple(keys)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/comm").read_text()
    return ""
