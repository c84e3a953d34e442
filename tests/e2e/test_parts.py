"""The parts as commands of their own, as on several machines: they share PostgreSQL, Redis and the
server secret, and reach the engine over TCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_fixtures import Servers, with_database
from running_platform import yesterday
from shell import run
from tenora_bench.server import free_port
from tiny_folder import write_tiny_folder

ADMIN = "admin-key-of-the-parts"


@contextmanager
def part(log: Path, environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`tenora` with `words` in the foreground; told to end at the end, which it does well."""
    command = [sys.executable, "-m", "tenora_platform.cli.main", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    try:
        yield process
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def call(url: str, key: str, method: str, path: str, **more: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.request(method, f"{url}{path}", headers=headers, timeout=60, **more)
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def environment(servers: Servers, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """Of an installation on servers of the operator's; its database is empty."""
    servers.execute("CREATE DATABASE {}", "parts")
    write_tiny_folder(tmp_path / "tiny")
    return {
        "TENORA_DATABASE_URL": with_database(servers.postgres_url, "parts"),
        "TENORA_REDIS_URL": redis_url,
        "TENORA_OBJECT_STORE": str(tmp_path / "objects"),
        "TENORA_SECRET": servers.secret.root.decode(),
        "TENORA_ADMIN_KEY": ADMIN,
        "TENORA_MODEL": str(tmp_path / "tiny"),
        "TENORA_LOAD_FORMAT": "dummy",
        "TENORA_MEMORY": "256MiB",
        "TENORA_LOG_LEVEL": "warning",
    }


def test_parts_of_their_own_make_one_platform(environment: dict[str, str], tmp_path: Path) -> None:
    port, engine = free_port(), f"tcp://127.0.0.1:{free_port()}"
    url = f"http://127.0.0.1:{port}"

    def own(name: str) -> dict[str, str]:
        return {**environment, "TENORA_DATA_DIR": str(tmp_path / name)}  # as on another machine

    code, text = run("api", "--engine", engine, "--port", str(port), **own("api"))
    assert (code, "tenora migrate" in text) == (1, True), text
    code, text = run("migrate", **own("api"))
    assert (code, "is at revision" in text) == (0, True), text
    with ExitStack() as stack:

        def start(name: str, *words: str) -> None:
            stack.enter_context(part(tmp_path / f"{name}.log", own(name), name, *words))

        start("engine", "--listen", engine)
        start("worker", "--engine", engine)
        start("api", "--engine", engine, "--port", str(port), "--workers", "2")

        def is_ready() -> bool:
            try:
                return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(is_ready, "ready")
        tenant = call(
            url, ADMIN, "POST", "/admin/v1/tenants", json={"name": "a", "plan": "standard"}
        )
        path = f"/admin/v1/tenants/{tenant['id']}/api_keys"
        key = call(url, ADMIN, "POST", path, json={"name": "k"})["key"]
        body = {"model": "tiny", "prompt": "Hi", "max_tokens": 5, "ignore_eos": True}
        assert (
            call(url, key, "POST", "/v1/completions", json=body)["usage"]["completion_tokens"] == 5
        )

        def roles() -> list[str]:
            listed = call(url, ADMIN, "GET", "/admin/v1/processes")["data"]
            return sorted(each["role"] for each in listed)

        wanted = ["api", "api", "engine", "supervisor", "worker"]
        wait_until(lambda: roles() == wanted, "each says that it is there")
        wait_until(lambda: usage(url, key) == 5, "the worker stores what was used")


def usage(url: str, key: str) -> int:
    buckets = call(url, key, "GET", "/v1/usage", params={"start": yesterday()})["data"]
    return sum(int(row["output_tokens"]) for bucket in buckets for row in bucket["results"])


def test_a_part_says_what_it_lacks(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "tiny")
    model = ("--model", str(tmp_path / "tiny"), "--load-format", "dummy")
    for name in ("api", "worker"):
        code, text = run(name, *model, "--data-dir", str(tmp_path / "here"))
        assert (code, "TENORA_DATABASE_URL" in text) == (1, True), text
        assert "Traceback" not in text
        far = ("--engine", "tcp://elsewhere:1", "--data-dir", str(tmp_path / "there"))
        code, text = run(name, *model, *far)
        assert (code, "TENORA_SECRET" in text) == (1, True), text


def test_the_supervisor_stays_small() -> None:
    """It lives as long as the platform and would keep what it imports."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tenora_platform.cli.main, tenora_platform.cli.run, tenora_platform.demo\n"
            "print([m for m in ('torch', 'transformers', 'fastapi', 'numpy') if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
