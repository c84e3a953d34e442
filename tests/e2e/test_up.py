"""What `make up` runs: the demo tenants and their adapters on first start, keys that work, the same
keys on the second start, and a clean end on Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai

from tenora_bench.server import free_port

QUESTION = "Hello! What can you tell me about your product?"


def start(data_dir: Path, model: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tenora_platform.cli.main", "up", "--port", str(port)]
    command += ["--data-dir", str(data_dir), "--model", str(model)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )


def demo_keys(data_dir: Path, process: subprocess.Popen[str]) -> dict[str, str]:
    """Tenant name -> key, once the demo is complete."""
    path, deadline = data_dir / "demo.json", time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        if path.exists():
            keys = {name: tenant["key"] for name, tenant in json.loads(path.read_text()).items()}
            if len(keys) == 2:
                return keys
        time.sleep(0.5)
    raise AssertionError("no demo keys after four minutes")


def answer(port: int, key: str, model: str) -> str:
    api = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)
    with api:
        made = api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
        )
    return made.choices[0].message.content or ""


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C as a terminal sends it: to the whole group. Returns what was printed."""
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=40)
    return printed


def wait_answering(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass  # not listening yet; the deadline bounds the wait
        time.sleep(0.2)
    raise AssertionError("not ready after two minutes")


def test_up_twice(base_model_dir: Path, tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    process = start(data, base_model_dir, port)
    try:
        keys = demo_keys(data, process)
        wait_answering(port)
        acme, globex = (answer(port, keys[name], "support") for name in ("acme", "globex"))
        assert acme
        assert globex
        assert acme != globex, "each demo tenant has its own `support`"
    finally:
        printed = interrupt(process)
    assert process.returncode == 0, printed
    assert "Traceback" not in printed, printed
    assert all(key in printed for key in keys.values()), printed
    assert re.search(rf"http://\S+:{port}", printed), printed

    process = start(data, base_model_dir, port)
    try:
        wait_answering(port)
        assert answer(port, keys["acme"], "support") == acme
        assert demo_keys(data, process) == keys
    finally:
        printed = interrupt(process)
    assert "Traceback" not in printed, printed
    assert all(key in printed for key in keys.values()), printed
