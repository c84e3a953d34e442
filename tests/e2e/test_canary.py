"""A canary on a platform that really runs: a real model, its adapter led from the store to the
device and to host memory, its bill; and the books, which agree with what the engine counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from tenora_bench.server import ServerUnderTest, serve

PATIENCE_S = 180.0
CHECKS = {"base", "store", "device", "host", "residency", "isolation", "bill"}


def asked(server: ServerUnderTest, method: str, path: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {server.admin_key}"}
    answer = httpx.request(method, f"{server.url}{path}", headers=headers, timeout=60, **more)
    assert answer.is_success, answer.text
    return answer


def test_the_canary_finds_everything_right_and_so_do_the_books(
    base_model_dir: Path, tmp_path: Path
) -> None:
    options = ["--dtype", "float32", "--canary-every-s", "1"]
    with serve(tmp_path / "data", base_model_dir, options) as server:
        rounds: list[dict[str, Any]] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(rounds) < 2 and time.monotonic() < deadline_s:
            canary = asked(server, "GET", "/admin/v1/reconciliation").json()["canary"]
            if canary is not None and canary not in rounds:
                rounds.append(canary)
            time.sleep(0.2)
        assert len(rounds) == 2, "there were rounds"
        for each in rounds:
            problems = {check["name"]: check["problem"] for check in each["checks"]}
            assert problems == dict.fromkeys(CHECKS), each
            assert each["ok"] is True
        run = asked(server, "POST", "/admin/v1/reconciliation/runs", json={}).json()
        while run["state"] in ("waiting", "running") and time.monotonic() < deadline_s:
            time.sleep(0.2)
            run = asked(server, "GET", f"/admin/v1/reconciliation/runs/{run['id']}").json()
        assert run["agrees"] is True, run
        assert run["looked"]["events"] >= 9
        shown = ""
        told = 'check="bill"} 1.0', "tenora_reconciliation_differences 0.0"
        while not all(each in shown for each in told) and time.monotonic() < deadline_s:
            shown = asked(server, "GET", "/metrics").text
            time.sleep(0.5)
        assert all(each in shown for each in told), shown
