"""A server of our own for the length of a measurement: `tenora serve` on a free port, its data in
a folder that goes away."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tenora_bench.client import BenchError


@dataclass(frozen=True)
class ServerUnderTest:
    url: str
    admin_key: str
    pid: int | None  # of the process we started; None for a server that was there


def free_port() -> int:
    """One that nobody listens on; in TIME_WAIT, so that for a minute only who names it gets it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        probe.listen(1)
        with socket.create_connection(probe.getsockname()):
            probe.accept()[0].close()  # first, so that TIME_WAIT is this side's
        return int(probe.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"the server ended before it was ready:\n{log.read_text()[-3000:]}")
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet; the deadline bounds the wait
        time.sleep(0.2)
    raise BenchError(
        f"the server was not ready after {timeout_s:.0f} s:\n{log.read_text()[-3000:]}"
    )


PRICES = {"uncached_prefill": "0.10", "cached_prefill": "0.02", "output": "0.40"}


def _set_prices(url: str, admin_key: str) -> None:
    """A fresh server charges nothing; one that was here before has them already."""
    body = {"effective_from": "2020-01-02T00:00:00Z", "per_million": PRICES}
    headers = {"authorization": f"Bearer {admin_key}"}
    answer = httpx.post(f"{url}/admin/v1/prices", json=body, headers=headers)
    if answer.status_code not in (201, 409):
        raise BenchError(f"no prices could be set: {answer.status_code} {answer.text[:300]}")


@contextmanager
def serve(data_dir: Path, model: Path, options: list[str]) -> Iterator[ServerUnderTest]:
    """Run `tenora serve` with `options`; yields when it is ready, stops it at the end."""
    port, admin_key = free_port(), f"bench-{secrets.token_hex(16)}"
    log = data_dir / "server.log"
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tenora_platform.cli.main", "serve", "--port", str(port)]
    command += ["--data-dir", str(data_dir), "--model", str(model), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Nobody else asks the engine while it is measured, unless `options` say so.
            env={"TENORA_PROBE_ADAPTERS": "false", **os.environ, "TENORA_ADMIN_KEY": admin_key},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, log, timeout_s=300)
        _set_prices(url, admin_key)
        yield ServerUnderTest(url, admin_key, process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
