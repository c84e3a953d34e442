"""How servers are asked whether they work: at most so often, one question at a time, and nobody
waits for one that hangs. What is said to anybody names no place."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from platform_fixtures import MakeApi
from tenora_platform.operations import probes
from tenora_platform.operations.probes import Found, Probe
from tenora_platform.processes.presence import this_process

HOST = "db-7.internal.example"
PATH = "/srv/secret/models"


async def test_an_answer_is_everybodys_for_a_while() -> None:
    asked = itertools.count()

    async def ask() -> None:
        next(asked)
        await asyncio.sleep(0)

    probe = Probe("database", ask, every_s=60)
    assert await asyncio.gather(*(probe.found() for _ in range(50))) == [None] * 50
    assert await probe.found() is None
    assert next(asked) == 1


async def test_a_bad_answer_holds_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "AGAIN_S", 0.0)
    answers = [RedisConnectionError(f"Error 111 connecting to {HOST}"), None]

    async def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    probe = Probe("redis", ask, every_s=60)
    assert await probe.found() == Found("refused", f"Error 111 connecting to {HOST}")
    assert await probe.found() is None


async def test_nobody_waits_for_a_question_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for its cancellation either; there is one, however many ask."""
    monkeypatch.setattr(probes, "ANSWER_S", 0.05)
    asked, answered = itertools.count(), asyncio.Event()

    async def ask() -> None:
        next(asked)
        while not answered.is_set():
            try:
                await answered.wait()
            except asyncio.CancelledError:
                continue  # as a driver that waits for its server to call a statement off

    probe = Probe("database", ask, every_s=0)
    async with asyncio.timeout(20):
        found = await asyncio.gather(*(probe.found() for _ in range(20)))
        found.append(await probe.found())
    assert {each.trouble for each in found if each is not None} == {"timeout"}
    assert len(found) == 21
    assert next(asked) == 1
    answered.set()
    async with asyncio.timeout(20):
        while await probe.found() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_the_engine_says_of_itself_is_the_operators(make_api: MakeApi) -> None:
    async with make_api() as api:
        tenant = await api.new_tenant()
        await api.engine.stop()
        api.state.engine_life.error = f"cannot read {PATH}/model.safetensors at {HOST}"
        asked = await api.call(
            tenant.key,
            "POST",
            "/v1/completions",
            json={"model": "fake-base", "prompt": "x", "max_tokens": 1},
        )
        assert asked.status_code == 503
        shown = await api.http.get("/readyz")
        assert shown.status_code == 503
        assert shown.json()["reason"] == "The engine could not start."
        for said in (shown.text, asked.text):
            assert PATH not in said
            assert HOST not in said
        assert PATH in (await api.admin("GET", "/readyz")).json()["reason"]


async def test_hosts_are_named_to_the_operator_alone(make_api: MakeApi) -> None:
    async with make_api() as api:
        worker = msgspec.structs.replace(
            this_process("worker"), host=HOST, outages={"usage": "OSError, see the log"}
        )
        supervisor = msgspec.structs.replace(
            this_process("supervisor"), host=HOST, restarts={"api-1": 3}
        )
        others = [worker, supervisor, msgspec.structs.replace(supervisor, host="other")]
        for path, wanted in (
            ("/readyz", "usage (OSError, see the log)"),
            ("/metrics", 'tenora_process_restarts_total{process="api-1"} 6.0'),
        ):
            api.state.presence.others = others
            shown = (await api.http.get(path)).text
            assert wanted in shown
            assert HOST not in shown
            api.state.presence.others = others
            assert HOST in (await api.admin("GET", path)).text


@pytest.mark.parametrize("key", ["tnt_unknown", "nonsense"])
async def test_a_probe_is_answered_whatever_key_it_brings(make_api: MakeApi, key: str) -> None:
    async with make_api() as api:
        tenant = await api.new_tenant()
        for each in (key, tenant.key):
            assert (await api.call(each, "GET", "/readyz")).status_code == 200
