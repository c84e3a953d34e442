"""A bad version in a staged roll-out under load, through two API processes: back by itself within
30 s of the moment its clients have seen enough, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from bad_engine import FAILS, GOOD, SLOW
from tenora_bench.adapters import AdapterSpec, write_adapter
from tenora_bench.client import Management
from tenora_bench.kills.platform import Platform, children, up
from tenora_engine.transport.messages import Boot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")

ALIAS = "/v1/adapters/moving/aliases/prod"
BOUND_S = 30.0
ENOUGH = 20  # requests of the version, before it is judged
CLIENTS = {("acme", "moving"): 12, ("acme", "moving@steady"): 3, ("globex", "support"): 3}


@dataclass
class Answer:
    """As its client saw it."""

    at_s: float
    status: int
    adapter: str | None
    first_s: float | None


@dataclass
class Seen:
    """By what was asked for."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def of(self, model: str, since_s: float) -> list[Answer]:
        return [each for each in self.answers.get(model, []) if each.at_s >= since_s]


def pretend(data_dir: Path, model: Path) -> Boot:
    from tenora_platform.processes.engine_address import engine_address
    from tenora_platform.settings import Settings

    settings = Settings(data_dir=data_dir, model=str(model))
    return Boot(settings.to_engine_config(), engine_address(settings), "bad_engine:build")


@pytest.fixture(scope="module")
def platform(base_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    support = str(Path(__file__).parents[1] / "support")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([support, os.environ.get("PYTHONPATH", "")]))
        root = tmp_path_factory.mktemp("bad")
        with up(root / "up", base_model_dir, pretend) as running:
            asyncio.run(_upload(running, base_model_dir, root))
            yield running


async def _upload(platform: Platform, model: Path, root: Path) -> None:
    """Version 1 is good, 2 fails, 3 is slow."""
    async with httpx.AsyncClient(base_url=platform.url, timeout=60) as http:
        for rank in (GOOD, FAILS, SLOW):
            folder = root / str(rank)
            write_adapter(folder, model, AdapterSpec("moving", rank, rank, modules=("q_proj",)))
            await Management(http, "").upload(platform.keys["acme"], "moving", folder)


def call(platform: Platform, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": f"Bearer {platform.keys['acme']}"}
    url = f"{platform.url}{path}"
    answer = httpx.request(method, url, headers=headers, json=body, timeout=30)
    assert answer.is_success, answer.text
    return answer.json()


@asynccontextmanager
async def under_load(platform: Platform) -> AsyncIterator[Seen]:
    """Each client has a connection of its own: the kernel gives it to one of the two processes."""
    seen = Seen()
    async with asyncio.TaskGroup() as tasks:
        clients = [
            tasks.create_task(_ask(platform, tenant, model, seen))
            for (tenant, model), count in CLIENTS.items()
            for _ in range(count)
        ]
        yield seen
        for client in clients:
            client.cancel()


async def _ask(platform: Platform, tenant: str, model: str, seen: Seen) -> None:
    """For ever, one request after the other, of nobody in particular."""
    headers = {"authorization": f"Bearer {platform.keys[tenant]}"}
    body = {"model": model, "prompt": "Hello", "max_tokens": 2, "stream": True}
    async with aiohttp.ClientSession(platform.url) as http:
        while True:
            began_s, first_s = time.monotonic(), None
            async with http.post("/v1/completions", json=body, headers=headers) as reply:
                status = reply.status
                async for line in reply.content:
                    if line.startswith(b'data: {"error"'):
                        status = 500
                    elif line.startswith(b"data: {") and first_s is None:
                        first_s = time.monotonic() - began_s
                adapter = reply.headers.get("x-tenora-adapter")
            answer = Answer(time.monotonic(), status, adapter, first_s)
            seen.answers.setdefault(model, []).append(answer)
            await asyncio.sleep(0.02)


async def _until(platform: Platform, state: str) -> Any:
    async with asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(call, platform, "GET", f"{ALIAS}/rollout")
            if found["state"] == state:
                return found
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    ("version", "guard", "words"),
    [
        (2, {"error_rate": 0.05, "min_requests": ENOUGH}, "requests failed"),
        (3, {"ttft_ratio": 3.0, "min_requests": ENOUGH}, "median time to the first token"),
    ],
)
async def test_a_bad_version_goes_back_and_nobody_else_notices(
    platform: Platform, version: int, guard: dict[str, Any], words: str
) -> None:
    assert len(children(platform.pid, "tenora-api-1")) == 1
    assert len(children(platform.pid, "tenora-api-2")) == 1
    good = {"targets": [{"version": 1, "weight": 100}]}
    for alias in (ALIAS, ALIAS.replace("prod", "steady")):
        await asyncio.to_thread(call, platform, "PUT", alias, good)
    stages = [{"percent": 5, "after_s": 600}, {"percent": 100, "after_s": 600}]
    body = {"version": version, "stages": stages, "guard": guard}
    async with under_load(platform) as seen:
        await asyncio.sleep(3)  # something is known of the version before
        began_s = time.monotonic()
        await asyncio.to_thread(call, platform, "POST", f"{ALIAS}/rollout", body)
        found = await _until(platform, "rolled_back")
        back_s = time.monotonic()
        await asyncio.sleep(2)
    assert words in found["reason"], found
    moving = seen.of("moving", began_s)
    bad = [each for each in moving if each.status != 200 or each.adapter == f"moving@{version}"]
    assert len(bad) >= ENOUGH
    threshold_s = bad[ENOUGH - 1].at_s
    print(
        f"{version}: {threshold_s - began_s:.1f} s to {ENOUGH} answers, back after "
        f"{back_s - threshold_s:.1f} s, the last one after {bad[-1].at_s - threshold_s:.1f} s; "
        f"{len(bad)} of {len(moving)}"
    )
    assert back_s - threshold_s < BOUND_S
    assert bad[-1].at_s - threshold_s < BOUND_S
    after = [each for each in moving if each.at_s > back_s + 1]
    assert after
    assert {(each.status, each.adapter) for each in after} == {(200, "moving@1")}
    for model, adapter in (("moving@steady", "moving@1"), ("support", "support@1")):
        others = seen.of(model, began_s)
        assert len(others) > 50
        assert {(each.status, each.adapter) for each in others} == {(200, adapter)}
