"""An engine that is killed together with its disk: the real one, in a process of its own, whose
outbox is deleted while it is dead. Every usage that a client was told of is billed exactly once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from api_harness import ADMIN_KEY
from tenora_engine.transport.process import ProcessEngineClient
from tenora_platform.app import create_app
from tenora_platform.background import api_work
from tenora_platform.settings import Settings
from tenora_platform.state import AppState
from tenora_platform.usage.copies import STREAM, CopyReader
from tenora_platform.usage.engine_totals import TotalsKeeper
from tenora_platform.usage.sink import UsageSink
from tiny_folder import write_tiny_folder

ASKING = 4


@asynccontextmanager
async def served(
    settings: Settings, engine: ProcessEngineClient
) -> AsyncIterator[tuple[AppState, httpx.AsyncClient]]:
    """The API alone: no worker reads what the engine keeps."""
    app = create_app(settings, engine=engine, work=api_work)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tenora") as http:
            await ready(engine)
            yield app.state.tenora, http


async def ready(engine: ProcessEngineClient) -> None:
    for _ in range(1200):
        if engine.ready:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"no engine: {engine.last_error}")


async def new_tenant(http: httpx.AsyncClient) -> str:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    body = {"name": "lost", "plan": "premium"}
    tenant = (await http.post("/admin/v1/tenants", headers=headers, json=body)).json()["id"]
    path = f"/admin/v1/tenants/{tenant}/api_keys"
    return str((await http.post(path, headers=headers, json={"name": "k"})).json()["key"])


async def test_a_lost_engine_node_loses_no_usage(settings: Settings, tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "tiny")
    changes = {"data_dir": tmp_path, "model": str(tmp_path / "tiny"), "load_format": "dummy"}
    settings = settings.model_copy(update={**changes, "memory": 256 * 1024**2})
    engine = ProcessEngineClient(settings.to_engine_config(), socket_dir=tmp_path)
    async with served(settings, engine) as (state, http):
        await state.redis.delete(STREAM)
        headers = {"authorization": f"Bearer {await new_tenant(http)}"}
        answered: list[dict[str, int]] = []
        enough, goes_on = asyncio.Event(), True

        async def ask(number: int) -> None:
            body = {"model": "tiny", "prompt": f"Hi {number}", "ignore_eos": True}
            while goes_on:
                body["max_tokens"] = 3 + (number + len(answered)) % 7
                answer = await http.post("/v1/completions", headers=headers, json=body)
                if answer.status_code == 200:
                    answered.append(answer.json()["usage"])
                    if len(answered) >= 12:
                        enough.set()
                else:
                    assert answer.status_code == 503, answer.text
                    await asyncio.sleep(0.05)

        asking = [asyncio.create_task(ask(number)) for number in range(ASKING)]
        await asyncio.wait_for(enough.wait(), 60)
        sink = UsageSink(engine, state.db)
        stored = await sink.run_once()  # of some, the engine's own record came first
        before = await TotalsKeeper(engine, state.db).run_once()
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(tmp_path / "outbox")
        goes_on = False
        await asyncio.gather(*asking)
        reader = CopyReader(state.redis, state.seal, state.db, sink, state.metrics, age_s=-1.0)
        missing = await reader.run_once()
        assert stored + missing == len(answered)
        assert await reader.run_once() == 0
        await ready(engine)
        body = {"model": "tiny", "prompt": "again", "max_tokens": 2, "ignore_eos": True}
        last = await http.post("/v1/completions", headers=headers, json=body)
        assert last.status_code == 200, last.text
        answered.append(last.json()["usage"])
        assert await sink.run_once() == 1
        assert await reader.run_once() == 0, "the engine's own came first"
        page = (await http.get("/v1/usage", headers=headers)).json()
        results = [each for bucket in page["data"] for each in bucket["results"]]
        for ours, theirs in (("prompt_tokens",) * 2, ("output_tokens", "completion_tokens")):
            billed = sum(result[ours] for result in results)
            assert billed == sum(usage[theirs] for usage in answered)
        assert sum(result["sequences"] for result in results) == len(answered)
        after = await TotalsKeeper(engine, state.db).run_once()
        assert after.engine != before.engine, "another outbox counts anew"
        assert sum(day.sequences for day in after.days) == 1
