"""Two API processes, a worker and the engine as they really run: what one of them does all know,
and what dies takes nothing with it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from running_platform import Running, yesterday

LONG = {"prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": True, "temperature": 0}


@pytest.fixture
async def key(running: Running) -> str:
    """A new key of acme, so that what a test spoils is its own."""
    return str(new_key(running)["key"])


def new_key(running: Running) -> dict[str, Any]:
    path = f"/admin/v1/tenants/{running.acme.id}/api_keys"
    made: dict[str, Any] = running.admin("POST", path, json={"name": "processes"}).json()
    return made


def processes(running: Running) -> dict[str, dict[str, Any]]:
    """By name, as any API process says it. Those that ended lately may be among them."""
    listed = running.admin("GET", "/admin/v1/processes").json()["data"]
    return {each["name"]: each for each in listed if alive(each["pid"])}


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def pids(running: Running) -> dict[str, int]:
    return {name: each["pid"] for name, each in processes(running).items()}


@contextmanager
def only(running: Running, name: str) -> Iterator[int]:
    """Of the API processes only this one takes requests; the other stands still, for less time than
    its lease with the engine. Its process id."""
    there = pids(running)
    others = [there[each] for each in ("api-1", "api-2") if each != name]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield there[name]
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for: {what}"
        await asyncio.sleep(0.1)


async def all_there(running: Running, *, besides: Collection[int] = ()) -> None:
    """Wait until each part runs, in processes other than `besides`."""

    async def there() -> bool:
        with suppress(httpx.HTTPError, KeyError):
            found = pids(running)
            names = {"supervisor", "engine", "api-1", "api-2", "worker"}
            return names <= found.keys() and not set(besides) & set(found.values())
        return False

    await until(there, "all parts", 60)


async def streamed(running: Running, key: str, name: str) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a long stream through one API process, from the first on."""
    headers = {"authorization": f"Bearer {key}"}
    body = {"model": running.base_model, "stream": True, **LONG}
    async with httpx.AsyncClient(base_url=running.api, timeout=60, headers=headers) as http:
        request = http.build_request("POST", "/completions", json=body)
        with only(running, name):
            reply = await http.send(request, stream=True)
        assert reply.status_code == 200, await reply.aread()
        try:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
        finally:
            await reply.aclose()


def running_sequences(running: Running) -> int:
    replica = running.admin("GET", "/admin/v1/engine").json()["replicas"][0]
    return int(replica["running"])


def counted(running: Running) -> float:
    shown = running.admin("GET", "/metrics").text
    found = re.search(r'tenora_http_requests_total\{[^}]*route="/v1/models"[^}]*\} (\S+)', shown)
    return float(found[1]) if found else 0.0


async def test_each_process_says_who_it_is(running: Running) -> None:
    await all_there(running)
    found = processes(running)
    roles = {name: each["role"] for name, each in found.items()}
    assert roles == {
        "supervisor": "supervisor",
        "engine": "engine",
        "api-1": "api",
        "api-2": "api",
        "worker": "worker",
    }
    assert found["supervisor"]["pid"] == running.server.pid
    assert not any(each["outages"] for each in found.values())
    shown = running.admin("GET", "/metrics").text
    assert 'tenora_processes{role="api"} 2.0' in shown
    assert "tenora_usage_dead_letters" in shown, "counted by the worker, shown by all"


async def test_every_api_process_shows_what_all_have_counted(running: Running, key: str) -> None:
    """A restarted one too: no counter falls."""
    await all_there(running)
    before = counted(running)
    for name in ("api-1", "api-2"):
        with only(running, name):
            for _ in range(5):
                assert running.call(key, "GET", "/v1/models").status_code == 200
    for name in ("api-1", "api-2"):
        with only(running, name):
            assert counted(running) == before + 10
    old = pids(running)["api-1"]
    os.kill(old, signal.SIGKILL)
    assert counted(running) == before + 10
    await all_there(running, besides={old})
    for name in ("api-1", "api-2"):
        with only(running, name):
            assert running.call(key, "GET", "/v1/models").status_code == 200
    assert counted(running) == before + 12
    restarts = running.admin("GET", "/metrics").text
    assert re.search(r'tenora_process_restarts_total\{[^}]*process="api-1"\} [1-9]', restarts)


async def test_a_killed_api_process_takes_its_requests_alone(running: Running, key: str) -> None:
    """The engine gives up what ran for it within 5 s; what the other serves goes on."""
    await all_there(running)
    before = pids(running)
    theirs, ours = streamed(running, key, "api-1"), streamed(running, key, "api-2")
    await anext(theirs)
    await anext(ours)
    assert running_sequences(running) == 2
    os.kill(before["api-1"], signal.SIGKILL)
    killed_s = time.monotonic()
    with pytest.raises(httpx.HTTPError):
        async for _ in theirs:
            pass

    async def given_up() -> bool:
        return running_sequences(running) == 1

    await until(given_up, "the dead process' request is given up", 10)
    assert time.monotonic() - killed_s < 6, "5 s, and the time to ask"
    for _ in range(3):
        assert "choices" in await anext(ours)
    await ours.aclose()
    await all_there(running, besides={before["api-1"]})
    after = pids(running)
    assert (after["engine"], after["worker"]) == (before["engine"], before["worker"])
    body = {"model": running.base_model, **LONG, "prompt": "A shared start. " * 40, "max_tokens": 2}
    answers = [running.call(key, "POST", "/v1/completions", json=body).json() for _ in range(2)]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_a_stopped_api_process_reads_on_when_it_goes_on(running: Running) -> None:
    """Its streams were cut after four seconds, with 503 "does not know this client any more"."""
    await all_there(running)
    made = new_key(running)
    events = streamed(running, made["key"], "api-1")
    await anext(events)
    with only(running, "api-2"):  # which serves meanwhile
        await asyncio.sleep(6)
        body = {"model": running.base_model, **LONG, "max_tokens": 2}
        assert running.call(made["key"], "POST", "/v1/completions", json=body).status_code == 200
    rest = [event async for event in events]
    assert not [event for event in rest if "error" in event]
    assert rest[-1]["choices"][0]["finish_reason"] == "length"

    def output_tokens() -> int:
        query = {"start": yesterday(), "group_by": "api_key"}
        data = running.call(made["key"], "GET", "/v1/usage", params=query).json()["data"]
        rows = [row for bucket in data for row in bucket["results"]]
        return sum(row["output_tokens"] for row in rows if row["api_key_id"] == made["id"])

    async def stored() -> bool:
        return output_tokens() >= 602

    await until(stored, "all usage is stored", 30)
    assert output_tokens() == 602, "each once"


async def test_a_killed_worker_loses_no_usage(running: Running) -> None:
    await all_there(running)
    tenant = running.globex
    made = running.admin("POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={"name": "w"})
    key = made.json()["key"]

    def output_tokens() -> int:
        query = {"start": yesterday(), "group_by": "api_key"}
        data = running.call(key, "GET", "/v1/usage", params=query).json()["data"]
        rows = [row for bucket in data for row in bucket["results"]]
        return sum(row["output_tokens"] for row in rows if row["api_key_id"] == made.json()["id"])

    worker = pids(running)["worker"]
    body = {"model": running.base_model, **LONG, "max_tokens": 4}
    for number in range(6):
        answer = running.call(key, "POST", "/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        if number == 2:
            os.kill(worker, signal.SIGKILL)

    async def stored() -> bool:
        return output_tokens() >= 24

    await all_there(running, besides={worker})
    await until(stored, "all usage is stored", 30)
    assert output_tokens() == 24, "each once"


async def test_a_key_that_is_revoked_elsewhere_ends_its_streams(running: Running) -> None:
    await all_there(running)
    made = new_key(running)
    events = streamed(running, made["key"], "api-1")
    await anext(events)
    with only(running, "api-2"):
        path = f"/admin/v1/tenants/{running.acme.id}/api_keys/{made['id']}"
        assert running.admin("DELETE", path).status_code < 300
        assert running.call(made["key"], "GET", "/v1/models").status_code == 401
    async with asyncio.timeout(15):
        last = [event async for event in events][-1]
    assert last["error"]["code"] == "key_revoked"
    with only(running, "api-1"):
        assert running.call(made["key"], "GET", "/v1/models").status_code == 401


async def test_hangup_replaces_all_but_the_engine_and_refuses_nobody(
    running: Running, key: str
) -> None:
    await all_there(running)
    before = pids(running)
    replaced = {before[name] for name in ("api-1", "api-2", "worker")}
    os.kill(before["supervisor"], signal.SIGHUP)
    answers: list[int] = []

    async def ask() -> bool:
        found = await asyncio.to_thread(running.call, key, "GET", "/v1/models")
        answers.append(found.status_code)
        return not any(map(alive, replaced))

    await until(ask, "the old ones have ended", 60)
    assert set(answers) == {200}
    await all_there(running, besides=replaced)
    assert pids(running)["engine"] == before["engine"]
    assert pids(running)["supervisor"] == before["supervisor"]
