"""A platform that serves is backed up, and what is restored serves the same: the same keys, the
same adapters, the same answers, the same books."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from running_platform import Running, yesterday
from tenora_bench.server import ServerUnderTest, serve

BODY = {"model": "support", "prompt": "Good morning", "max_tokens": 6, "temperature": 0}


def command(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tenora_platform.cli.main", *words],
        env={name: value for name, value in os.environ.items() if not name.startswith("TENORA_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(server: ServerUnderTest, key: str, method: str, path: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.request(method, f"{server.url}{path}", headers=headers, timeout=60, **more)
    assert answer.status_code < 300, answer.text
    return answer.json()


def text_of(server: ServerUnderTest, key: str) -> str:
    answer = call(server, key, "POST", "/v1/completions", json=BODY)
    return str(answer["choices"][0]["text"])


def output_tokens(server: ServerUnderTest, key: str) -> int:
    query = {"start": yesterday(), "bucket": "1d", "limit": "2"}
    usage = call(server, key, "GET", "/v1/usage", params=query)
    return sum(
        int(result["output_tokens"]) for bucket in usage["data"] for result in bucket["results"]
    )


def test_a_platform_that_serves_is_backed_up(running: Running, tmp_path: Path) -> None:
    key = running.acme.key
    said = text_of(running.server, key)
    before = output_tokens(running.server, key)
    with ThreadPoolExecutor(2) as pool:
        backup = str(tmp_path / "backup")
        words = ("backup", backup, "--with-secret", "--data-dir", str(running.data_dir))
        made = pool.submit(command, *words)
        while not made.done():
            assert text_of(running.server, key) == said, "it serves meanwhile"
        assert "objects" in made.result()
    manifest = json.loads((tmp_path / "backup" / "manifest.json").read_text())
    restored = tmp_path / "restored"
    assert "Proved" in command("restore", backup, "--data-dir", str(restored))
    options = ["--dtype", "float32"]
    with serve(restored, running.model_dir, options) as server:
        assert text_of(server, key) == said
        assert output_tokens(server, key) >= before
        names = call(server, key, "GET", "/v1/adapters")["data"]
        assert [each["name"] for each in names] == ["support"]
        warnings = httpx.get(f"{server.url}/readyz").json()["warnings"]
        assert not any("object store" in each or "books" in each for each in warnings), warnings
    assert manifest["objects"]["count"] > 0
