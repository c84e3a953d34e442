"""What survives: a killed engine comes back under the same platform, and a platform whose
supervisor was killed comes back with its tenants, its adapters and every metered token."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx

from running_platform import make_tenant, yesterday
from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.server import ServerUnderTest, serve


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def is_part(pid: int) -> bool:
    """Whether that is the process of a part of ours, and runs."""
    try:
        return b"-m\0tenora_" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def engine_pid(server: ServerUnderTest) -> int:
    assert server.pid is not None
    engines = [
        pid
        for pid in children(server.pid)
        if b"tenora_engine.transport" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(engines) == 1, engines
    return engines[0]


def ask(server: ServerUnderTest, key: str) -> dict[str, Any]:
    body = {
        "model": "mine", "prompt": "Good morning", "max_tokens": 6, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {key}"}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def output_tokens(server: ServerUnderTest, key: str) -> int:
    reply = httpx.get(
        f"{server.url}/v1/usage",
        params={"start": yesterday()},
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )
    return sum(row["output_tokens"] for bucket in reply.json()["data"] for row in bucket["results"])


def wait_until(condition: Any, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for: {what}"
        time.sleep(0.1)


def status(server: ServerUnderTest) -> int:
    return httpx.get(f"{server.url}/readyz", timeout=10).status_code


async def test_killed_engine_and_stopped_platform(base_model_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_adapter(folder, base_model_dir, AdapterSpec("mine", rank=4, seed=3))
    data = tmp_path / "data"
    with serve(data, base_model_dir, []) as server:
        key = (await make_tenant(server, "acme", {"mine": folder})).key
        first = ask(server, key)
        wait_until(lambda: output_tokens(server, key) == 6, "the first answer's usage")

        os.kill(engine_pid(server), signal.SIGKILL)
        wait_until(lambda: status(server) == 503, "not ready once the engine is dead")
        wait_until(lambda: status(server) == 200, "the engine is back")
        second = ask(server, key)
        assert second["choices"][0]["text"] == first["choices"][0]["text"]
        wait_until(lambda: output_tokens(server, key) == 12, "both answers' usage, once each")
        parts = [pid for pid in children(server.pid or 0) if is_part(pid)]
        assert len(parts) == 4, "engine, worker, what checks for it, and one API process"
        os.kill(server.pid or 0, signal.SIGKILL)  # the supervisor: its parts end by themselves

    with serve(data, base_model_dir, []) as server:
        assert output_tokens(server, key) == 12
        wait_until(lambda: not any(map(is_part, parts)), "nothing of the killed one is left", 20)
        third = ask(server, key)
        assert third["choices"][0]["text"] == first["choices"][0]["text"]
        left = children(server.pid or 0)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left), "no orphans", 20)
