"""Deleting an adapter or a version: 404 everywhere at once, and every process's engine gives back
memory and cached KV, whichever process was asked and whoever died in between."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
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


def is_forgotten(api: Api, namespace: str) -> bool:
    return namespace in api.engine.forgotten_namespaces


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


async def test_a_suspended_tenant_leaves_nothing_cached(make_api: MakeApi) -> None:
    """Its base model's KV goes as well, in every process's engine, and once more for a request that
    was let in before."""
    async with make_api() as one, make_api() as two:
        await until(lambda: one.engine.ready and two.engine.ready)
        owner = await one.new_tenant("suspended", plan="premium")
        other = await one.new_tenant("stays", plan="premium")
        for key in (owner.key, other.key):
            assert await asked(one, key, one.engine.model.id) == 200
        namespaces = [request.tenant.namespace for request in one.engine.requests[-2:]]
        await one.admin("PATCH", f"/admin/v1/tenants/{owner.id}", json={"status": "suspended"})
        for api in (one, two):
            await until(partial(is_forgotten, api, namespaces[0]))
            assert namespaces[1] not in api.engine.forgotten_namespaces
        late, told = Forgetter(one.state), []
        now = datetime.now(UTC)
        one.engine.forgotten_namespaces.clear()
        for after_s in (0, 2, 90, 123, 125, 500):
            await late.run_once(now + timedelta(seconds=after_s))
            told.append(one.engine.forgotten_namespaces.count(namespaces[0]))
        assert told == [1, 1, 1, 2, 2, 2]


async def test_what_a_trust_group_shares_is_kept_for_the_others(api: Api) -> None:
    await until(lambda: api.engine.ready)
    pair = [await api.new_tenant(name, plan="premium") for name in "xy"]
    for tenant in pair:
        change = {"trust_group": "pair"}
        await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json=change)
    assert await asked(api, pair[0].key, api.engine.model.id) == 200
    namespace = api.engine.requests[-1].tenant.namespace
    for count, tenant in enumerate(pair):
        await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})
        await Forgetter(api.state).run_once()
        assert (namespace in api.engine.forgotten_namespaces) == (count == 1)
