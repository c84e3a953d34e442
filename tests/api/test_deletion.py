"""Deleting an adapter or a version: 404 everywhere at once, and every process's engine gives back
memory and cached KV, whichever process was asked and whoever died in between."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from adapter_files import adapter_form
from api_harness import Api
from fake_engine import FakeEngine
from served_api import until
from tenora_platform.registry.forgetting import Forgetter
from tenora_platform.registry.resolver import Resolver
from tenora_platform.registry.worker import IntakeWorker

MakeApi = Callable[..., Any]


async def pushed(api: Api, key: str, name: str, seed: int) -> str:
    """An active version's digest."""
    files = adapter_form(api.engine.model, name, seed=seed)
    made = (await api.call(key, "POST", "/v1/adapters", files=files)).json()
    async with asyncio.timeout(20):
        while True:
            await IntakeWorker(api.state).run_once()
            path = f"/v1/adapters/{name}/versions/{made['version']}"
            found = (await api.call(key, "GET", path)).json()
            if found["state"] == "active":
                return str(found["digest"])
            await asyncio.sleep(0.02)


async def asked(api: Api, key: str, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    return (await api.call(key, "POST", "/v1/chat/completions", json=body)).status_code


def forgotten(api: Api) -> list[str]:
    return [digest for _, digest in api.engine.forgotten]


@pytest.mark.parametrize("path", ["/v1/adapters/shared", "/v1/adapters/shared/versions/1"])
async def test_every_process_gives_it_back(make_api: MakeApi, path: str) -> None:
    async with make_api() as one, make_api() as two:
        await until(lambda: one.engine.ready and two.engine.ready)
        owner = await one.new_tenant("two processes", plan="premium")
        digest = await pushed(one, owner.key, "shared", seed=len(path))
        for api in (one, two):
            assert await asked(api, owner.key, "shared") == 200
        assert (await one.call(owner.key, "DELETE", path)).status_code == 200
        for api in (one, two):
            for model in ("shared", "shared@1"):
                assert await asked(api, owner.key, model) == 404
        assert digest in forgotten(one), "its own engine is told before the answer"
        await until(lambda: digest in forgotten(two))
        assert {space for space, each in two.engine.forgotten if each == digest} == {
            space for space, each in one.engine.forgotten if each == digest
        }


async def test_a_process_that_dies_after_its_commit(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names are forgotten and the engine is told by whoever lives."""
    await until(lambda: api.engine.ready)
    owner = await api.new_tenant("dies", plan="premium")
    digest = await pushed(api, owner.key, "orphan", seed=21)
    assert await asked(api, owner.key, "orphan") == 200

    async def dies(*_: object) -> None:
        raise ConnectionError("the process ended here")

    with monkeypatch.context() as patch:
        patch.setattr(Resolver, "invalidate", dies)
        answer = await api.call(owner.key, "DELETE", "/v1/adapters/orphan")
        assert answer.status_code == 500
    await Forgetter(api.state).run_once()
    assert digest in forgotten(api)
    assert await asked(api, owner.key, "orphan") == 404


async def test_the_engine_is_told_again(api: Api, tmp_path: Path) -> None:
    """For a request that had its version before, and reached the engine after; then no more."""
    owner = await api.new_tenant("late", plan="premium")
    digest = await pushed(api, owner.key, "late", seed=22)
    await api.call(owner.key, "DELETE", "/v1/adapters/late")
    engine = FakeEngine(tmp_path / "another")
    state = dataclasses.replace(api.state, engine=engine)
    late = Forgetter(state)
    await late.run_once()
    assert engine.forgotten == [], "one that does not run yet is told later"
    await engine.start()
    now, told = datetime.now(UTC), []
    for after_s in (0, 2, 119, 123, 125, 500):
        await late.run_once(now + timedelta(seconds=after_s))
        told.append([each for _, each in engine.forgotten].count(digest))
    assert told == [1, 1, 1, 2, 2, 2]


async def test_content_that_is_served_again_is_kept(api: Api) -> None:
    owner = await api.new_tenant("again", plan="premium")
    digest = await pushed(api, owner.key, "again", seed=23)
    await api.call(owner.key, "DELETE", "/v1/adapters/again")
    assert await pushed(api, owner.key, "again", seed=23) == digest
    told = forgotten(api).count(digest)
    await Forgetter(api.state).run_once(datetime.now(UTC) + timedelta(hours=1))
    assert forgotten(api).count(digest) == told
    assert await asked(api, owner.key, "again") == 200
