"""A `tenora up` of its own, with two tenants' keys, and which process of it is which (Linux)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import httpx

from tenora_bench.client import BenchError
from tenora_bench.kills.pretend import held_engine
from tenora_bench.server import free_port, wait_ready
from tenora_engine.transport.messages import Boot

Pretend = Callable[[Path, Path], Boot]
"""Of a data directory and a model, the pretend engine that a platform there will look for."""

Part = Literal["engine", "api-1", "api-2", "worker", "valkey", "postgres"]
PARTS: tuple[Part, ...] = get_args(Part)
LEASE_S = 5.0
_API_PROCESSES = 2
_PID_FILES = {"postgres": "postgres/data/postmaster.pid", "valkey": "valkey/valkey.pid"}
_LIMITS = {
    "requests_per_min": 10**6,
    "tokens_per_min": 10**9,
    "parallel_requests": 1000,
    "budget": "1000000",
}
"""So many that nothing is refused, and each request holds some of each."""


@dataclass(frozen=True)
class Platform:
    """A `tenora up` that runs."""

    url: str
    data_dir: Path
    pid: int
    engine_owner: int  # the process whose child the engine is
    keys: dict[str, str]

    def pid_of(self, part: Part) -> int | None:
        """The process that serves as `part` now; None between two."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if part in _PID_FILES:
                return int((self.data_dir / _PID_FILES[part]).read_text().split()[0])
            owner = self.engine_owner if part == "engine" else self.pid
            return next(iter(children(owner, f"tenora-{part}")), None)
        return None


@contextmanager
def up(scratch: Path, model: Path, pretend: Pretend | None = None) -> Iterator[Platform]:
    """`tenora up` on a free port with its demo tenants, two API processes, and room for all; at its
    own engine, or at a pretend one beside it."""
    data, log = scratch / "data", scratch / "up.log"
    scratch.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        options: list[str] = []
        owner = None
        if pretend is not None:
            boot = pretend(data, model)
            owner = stack.enter_context(held_engine(boot, log))
            options = ["--engine", boot.address.endpoint]
        process, url = stack.enter_context(_platform(data, model, log, options))
        wait_ready(url, process, log, timeout_s=300)
        tenants = _demo_tenants(data, process, log)
        _lift_limits(url, (data / "admin_key").read_text().strip(), tenants)
        keys = {name: str(tenant["key"]) for name, tenant in tenants.items()}
        yield Platform(url, data, process.pid, owner or process.pid, keys)


@contextmanager
def _platform(
    data: Path, model: Path, log: Path, options: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process and its URL."""
    port = free_port()
    command = [sys.executable, "-m", "tenora_platform.cli.main", "up", "--port", str(port)]
    command += ["--data-dir", str(data), "--model", str(model)]
    command += ["--workers", str(_API_PROCESSES), "--lease-s", str(LEASE_S)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Each event is to be a client's.
            env={**os.environ, "TENORA_PROBE_ADAPTERS": "false"},
        )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _demo_tenants(data: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if (data / "demo.json").exists():
            tenants: dict[str, Any] = json.loads((data / "demo.json").read_text())
            return tenants
        time.sleep(0.2)
    raise BenchError(f"no demo tenants:\n{log.read_text()[-3000:]}")


def _lift_limits(url: str, admin_key: str, tenants: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {admin_key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        http.put("/admin/v1/plans/kills", json={"limits": _LIMITS}).raise_for_status()
        for tenant in tenants.values():
            path = f"/admin/v1/tenants/{tenant['id']}"
            http.patch(path, json={"plan": "kills"}).raise_for_status()


def children(pid: int, name: str) -> list[int]:
    """The children of `pid` that go by this name, as `ps` shows it (Linux)."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if Path(f"/proc/{child}/comm").read_text().strip() == name[:15]:
                found.append(child)
    return found


def processes_of(data_dir: Path, known: Sequence[int | None]) -> list[str]:
    """Processes that still run on the data directory or are among `known` (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            at_home = str(data_dir) in f"{command} {(folder / 'cwd').readlink()}"
            if int(folder.name) != os.getpid() and (at_home or int(folder.name) in known):
                found.append(f"{folder.name} {command}")
    return found
