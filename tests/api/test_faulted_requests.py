"""Requests that go wrong in every way at once, on the fake engine: clients that leave, bodies that
break off, an engine that refuses, fails or dies, connections of Redis and PostgreSQL that are cut.
When they are over nothing is held, and what was metered is billed once.

TENORA_FAULTED_REQUESTS=10000 runs as many of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from sqlalchemy import select

from api_harness import Api, TestTenant, running_api
from fake_engine import FakeEngine
from platform_fixtures import plain_url
from served_api import served
from tenora_engine.errors import EngineUnavailableError, QueueFullError
from tenora_engine.events import FinishEvent, SequenceEvent, TokenEvent, UsageRecord
from tenora_engine.request import GenerationRequest
from tenora_platform.settings import Settings
from tenora_platform.usage.ids import event_of_run
from tenora_platform.usage.tables import UsageEventRow

REQUESTS = int(os.environ.get("TENORA_FAULTED_REQUESTS", "300"))
CLIENTS = 24
LEASE_S = 3.0
FAULTS = (
    "none",
    "none",
    "none",
    "leave at once",
    "leave",
    "half a body",
    "no json",
    "no such model",
    "too long",
    "refuse",
    "die",
    "fail",
    "stop",
)


class FaultyEngine(FakeEngine):
    """Does what the prompt says: `refuse`, `die` after two tokens, `fail` with an error."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.metered: list[UsageRecord] = []

    async def submit(self, request: GenerationRequest) -> AsyncIterator[SequenceEvent]:
        prompt = self.text.decode(request.prompt_token_ids)
        if "refuse" in prompt:
            raise QueueFullError("the queue is full", 10)
        tokens = 0
        async for event in super().submit(request):
            tokens += isinstance(event, TokenEvent)
            if "die" in prompt and tokens > 2:
                raise EngineUnavailableError("the engine process died")
            await asyncio.sleep(random.random() * 0.01)
            if "fail" in prompt and isinstance(event, FinishEvent):
                yield replace(event, reason="error", error="a kernel failed")
            else:
                yield event

    def _bill(self, record: UsageRecord) -> None:
        self.metered.append(record)
        super()._bill(record)


@dataclass
class Seen:
    """What the clients saw."""

    answers: Counter[str] = field(default_factory=Counter)
    complete: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> tokens

    def note(self, answer: dict[str, Any]) -> None:
        usage = answer["usage"]
        self.complete[answer["id"]] = (usage["prompt_tokens"], usage["completion_tokens"])


@pytest.fixture
async def api(settings: Settings, tmp_path: Path, monkeypatch: Any) -> AsyncIterator[Api]:
    monkeypatch.setattr("api_harness.FakeEngine", FaultyEngine)
    async with running_api(settings.model_copy(update={"lease_s": LEASE_S}), tmp_path) as made:
        yield made


async def test_nothing_is_lost_held_or_doubled(api: Api, settings: Settings) -> None:
    engine = api.engine
    assert isinstance(engine, FaultyEngine)
    engine.answer = lambda request, index: "a short answer"
    # Enough for all: what is refused here must be refused for its fault.
    limits = {"requests_per_min": 10**6, "tokens_per_min": 10**9, "parallel_requests": 10**4}
    await api.put_plan("faulted", limits)
    tenants = [await api.new_tenant(f"faulted-{n}", plan="faulted") for n in range(3)]
    seen = Seen()
    todo = iter(range(REQUESTS))
    over = asyncio.Event()

    async def client(http: aiohttp.ClientSession) -> None:
        for number in todo:
            await one_request(http, tenants[number % 3], random.Random(number), seen)

    async with served(api) as base_url:
        origin = base_url.removesuffix("/v1")
        connector = aiohttp.TCPConnector(limit=CLIENTS)
        cutting = asyncio.create_task(cut_connections(settings, over))
        async with aiohttp.ClientSession(origin, connector=connector) as http:
            await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
        over.set()
        await cutting
    unexpected = {what for what in seen.answers if not expected(what)}
    assert not unexpected, seen.answers
    assert seen.answers["200"] > REQUESTS / 8, seen.answers
    await nothing_is_held(api, tenants)
    await billed_once(api, engine, seen)


def expected(what: str) -> bool:
    status, _, code = what.partition(" ")
    if status in ("200", "left"):
        return True
    return what in {
        "400 invalid_json",
        "404 model_not_found",
        "413 request_too_large",
        "400 context_length_exceeded",
        "429 engine_overloaded",
        "500 engine_error",
    } or (status == "503" and code != "None")


async def one_request(
    http: aiohttp.ClientSession, tenant: TestTenant, chance: random.Random, seen: Seen
) -> None:
    fault = chance.choice(FAULTS)
    body: dict[str, Any] = {
        "model": "none" if fault == "no such model" else "fake-base",
        "prompt": "x" * 5000 if fault == "too long" else f"Do {fault}",
        "max_tokens": chance.randint(1, 20),
        "n": chance.choice((1, 1, 1, 3)),
        "stream": chance.random() < 0.6,
    }
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if fault == "stop":
        body["stop"] = ["sho"]
    data = json.dumps(body).encode()
    if fault == "no json":
        data = data[:-1]
    headers = {"authorization": f"Bearer {tenant.key}", "content-type": "application/json"}
    leaves_s = {"leave at once": 0.001, "leave": chance.random() * 0.2}.get(fault)
    sent = half(data) if fault == "half a body" else data
    try:
        async with asyncio.timeout(leaves_s if leaves_s is not None else 60):
            async with http.post("/v1/completions", data=sent, headers=headers) as reply:
                seen.answers[await read(reply, seen)] += 1
    except (TimeoutError, aiohttp.ClientError, BrokenBodyError) as error:
        if leaves_s is None and fault != "half a body":
            raise AssertionError(f"{fault}: {error!r}") from error
        seen.answers["left"] += 1


class BrokenBodyError(Exception):
    pass


async def half(data: bytes) -> AsyncIterator[bytes]:
    yield data[: len(data) // 2]
    raise BrokenBodyError


async def read(reply: aiohttp.ClientResponse, seen: Seen) -> str:
    """Status and code of the answer, or of the error that ended its stream."""
    if reply.status != 200:
        return f"{reply.status} {(await reply.json())['error']['code']}"
    if reply.content_type != "text/event-stream":
        seen.note(await reply.json())
        return "200"
    last: dict[str, Any] = {}
    done = False
    async for line in reply.content:
        done = done or line.startswith(b"data: [DONE]")
        if line.startswith(b"data: {"):
            last = json.loads(line[6:])
            if "error" in last:
                code = last["error"]["code"]
                return f"{500 if code == 'engine_error' else 503} {code}"
    assert done, "a stream that just ends"
    seen.note(last)
    return "200"


async def cut_connections(settings: Settings, over: asyncio.Event) -> None:
    """Every tenth of a second, all of PostgreSQL's or of Redis's."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    turns = 0
    redis = Redis.from_url(settings.redis_url)
    link = await psycopg.AsyncConnection.connect(plain_url(settings.database_url), autocommit=True)
    async with redis, link:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await over.wait()
            if turns % 2:
                await redis.client_kill_filter(_type="normal", skipme=True)
            else:
                await link.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid()"
                )
            turns += 1


async def nothing_is_held(api: Api, tenants: list[TestTenant]) -> None:
    """One lease later at most; here or in Redis."""
    async with asyncio.timeout(LEASE_S + 15):
        for tenant in tenants:
            while await places_used(api, tenant):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    running = [task.get_name() for task in asyncio.all_tasks() if "run.end" in str(task)]
    assert not running


async def places_used(api: Api, tenant: TestTenant) -> int:
    shown = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    return int(shown["parallel_requests"]["used"])


async def billed_once(api: Api, engine: FaultyEngine, seen: Seen) -> None:
    """What the engine metered is in the database, once; what was answered is among it."""
    async with asyncio.timeout(60):
        while engine.outbox:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    metered = {
        event_of_run(record.request_id, record.context, record.index): record
        for record in engine.metered
    }
    assert len(metered) == len(engine.metered)
    async with api.state.db.admin_session() as session:
        rows = list(await session.scalars(select(UsageEventRow)))
    assert len(rows) == len(metered) == len({(row.request, row.sequence) for row in rows})
    by_key = {event.key: (event, record) for event, record in metered.items()}
    stored: dict[str, tuple[int, int]] = {}
    for row in rows:
        event, record = by_key[row.request, row.sequence]
        assert (row.prompt_tokens, row.output_tokens) == (
            record.prompt_tokens,
            record.output_tokens,
        )
        prompt, output = stored.get(event.request_id, (0, 0))
        stored[event.request_id] = (prompt + row.prompt_tokens, output + row.output_tokens)
    for request_id, tokens in seen.complete.items():
        assert stored[request_id] == tokens
