"""Since when something is wrong: the same in every process, kept whether or not anybody looks."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import RedisError

from api_harness import Api
from tenora_platform.live.since import Since
from tenora_platform.operations.service import ENGINE, told_warnings, wrong


async def test_processes_agree_when_it_began(api: Api) -> None:
    one, other = Since(api.state.redis), Since(api.state.redis)
    await one.look(["a", "b"])
    await other.look(["b", "c"])
    assert other.known["b"] == pytest.approx(one.known["b"], abs=0.001)
    assert set(other.known) == {"b", "c"}
    await one.look([])
    assert one.known == {}


async def test_without_redis_it_is_as_this_process_saw_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = Since(api.state.redis)

    async def away(*_: object) -> None:
        raise RedisError("away")

    monkeypatch.setattr(Since, "_read", away)
    await since.look(["x"])
    first = since.known["x"]
    await asyncio.sleep(0)
    await since.look(["x"])
    assert since.known == {"x": first}


async def test_what_is_wrong_is_called_alike_while_a_count_moves(api: Api) -> None:
    api.state.unbilled.counted = (3, 0)
    (first,) = (each.key for each in told_warnings(api.state) if each.about == "unbilled")
    api.state.unbilled.counted = (12, 0)
    (then,) = (each.key for each in told_warnings(api.state) if each.about == "unbilled")
    assert first == then
    assert first in wrong(api.state)
    api.state.unbilled.counted = (0, 0)
    assert first not in wrong(api.state)
    api.engine.ready = False
    assert ENGINE in wrong(api.state)
    api.engine.ready = True
