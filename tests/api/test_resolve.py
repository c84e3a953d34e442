"""What a `model` means: the hot-adapter cache in Redis against PostgreSQL."""

from __future__ import annotations

import asyncio
import collections
from typing import Any

import pytest
from redis.asyncio import Redis

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_platform.errors import NotFoundError
from tenora_platform.registry.resolver import Resolver
from tenora_platform.registry.worker import IntakeWorker

BASE = "fake-base"


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("resolve", plan="premium")


@pytest.fixture
def resolver(api: Api) -> Resolver:
    return Resolver(api.state.db, api.state.redis, api.state.secret, api.state.seal)


async def push(api: Api, tenant: TestTenant, name: str, seed: int) -> None:
    files = adapter_form(api.engine.model, name, seed=seed)
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202
    await IntakeWorker(api.state).run_once()
    path = f"/v1/adapters/{name}/versions/{made.json()['version']}"
    while (await api.call(tenant.key, "GET", path)).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()


async def resolved(resolver: Resolver, tenant: TestTenant, model: str, sticky: str = "s") -> str:
    """`name@version`, "base", or "404"."""
    try:
        found = await resolver.resolve(tenant.id, model, BASE, sticky=sticky)
    except NotFoundError as error:
        return "404" if error.code == "model_not_found" else f"404 {error.code}"
    return found.adapter.label if found.adapter else "base"


async def alias(api: Api, tenant: TestTenant, name: str, alias: str, **weights: int) -> None:
    targets = [
        {"version": int(version[1:]), "weight": weight} for version, weight in weights.items()
    ]
    path = f"/v1/adapters/{name}/aliases/{alias}"
    answer = await api.call(tenant.key, "PUT", path, json={"targets": targets})
    assert answer.status_code == 200, answer.text


async def test_forms_and_invalidation(api: Api, tenant: TestTenant, resolver: Resolver) -> None:
    """Every change holds for the next request, though everything was cached before it."""
    assert await resolved(resolver, tenant, BASE) == "base"
    assert await resolved(resolver, tenant, "a") == "404"
    await push(api, tenant, "a", 1)
    assert await resolved(resolver, tenant, "a") == "a@1"
    await push(api, tenant, "a", 2)
    assert await resolved(resolver, tenant, "a") == "a@2"
    assert await resolved(resolver, tenant, "a@1") == "a@1"
    assert await resolved(resolver, tenant, "a@3") == "404"
    assert await resolved(resolver, tenant, "a@prod") == "404"
    await alias(api, tenant, "a", "prod", v1=100)
    assert await resolved(resolver, tenant, "a") == "a@1"
    assert await resolved(resolver, tenant, "a@prod") == "a@1"
    await alias(api, tenant, "a", "prod", v2=100)
    assert await resolved(resolver, tenant, "a") == "a@2"
    await api.call(tenant.key, "DELETE", "/v1/adapters/a/versions/2")
    assert await resolved(resolver, tenant, "a") == "404"  # prod says 2, and nothing else will do
    assert await resolved(resolver, tenant, "a@1") == "a@1"
    await api.call(tenant.key, "DELETE", "/v1/adapters/a")
    for model in ("a", "a@1", "a@prod"):
        assert await resolved(resolver, tenant, model) == "404"
    for odd in ("", "a@", "@a", "a@1@2", "a b", "a" * 200, "../a", "a\n", "a@99999999999999"):
        assert await resolved(resolver, tenant, odd) == "404"


async def test_weights_and_stickiness(api: Api, tenant: TestTenant, resolver: Resolver) -> None:
    await push(api, tenant, "w", 1)
    await push(api, tenant, "w", 2)
    await alias(api, tenant, "w", "canary", v1=75, v2=25)
    seen: collections.Counter[str] = collections.Counter()
    for number in range(400):
        first = await resolved(resolver, tenant, "w@canary", f"user {number}")
        assert await resolved(resolver, tenant, "w@canary", f"user {number}") == first
        seen[first] += 1
    assert seen.keys() == {"w@1", "w@2"}
    assert 260 <= seen["w@1"] <= 340  # 300 expected, deviation 8.7
    await api.call(tenant.key, "DELETE", "/v1/adapters/w/versions/1")
    assert await resolved(resolver, tenant, "w@canary", "anyone") == "w@2"


async def test_ten_thousand_resolutions(api: Api, tenant: TestTenant, resolver: Resolver) -> None:
    """Within 2% of the weights, by who asks and by chance."""
    for seed in (1, 2, 3):
        await push(api, tenant, "many", seed)
    await alias(api, tenant, "many", "prod", v1=70, v2=25, v3=5)

    async def count(stickies: list[str | None]) -> collections.Counter[int]:
        found: collections.Counter[int] = collections.Counter()
        for at in range(0, len(stickies), 1000):
            asked = [
                resolver.resolve(tenant.id, "many", BASE, sticky=sticky)
                for sticky in stickies[at : at + 1000]
            ]
            found.update(
                each.adapter.version for each in await asyncio.gather(*asked) if each.adapter
            )
        return found

    users: list[str | None] = [f"user {number}" for number in range(10_000)]
    by_user, by_chance = await count(users), await count([None] * 10_000)
    for version, weight in ((1, 70), (2, 25), (3, 5)):
        assert abs(by_user[version] - 100 * weight) <= 200, by_user
        assert abs(by_chance[version] - 100 * weight) <= 200, by_chance
    assert await count(users[:2000]) == await count(users[:2000])


async def test_served_from_redis(api: Api, tenant: TestTenant, resolver: Resolver) -> None:
    await push(api, tenant, "hot", 1)
    assert await resolved(resolver, tenant, "hot") == "hot@1"

    class NoDatabase:
        def tenant_session(self, tenant_id: str) -> Any:
            raise AssertionError("the cache should have answered")

    nothing: Any = NoDatabase()
    cached = Resolver(nothing, api.state.redis, api.state.secret, api.state.seal)
    assert await resolved(cached, tenant, "hot") == "hot@1"
    assert await resolved(resolver, tenant, "missing") == "404"
    assert await resolved(cached, tenant, "missing") == "404"
    name = f"tenora:models:{tenant.id}:means:"
    assert 0 < await api.state.redis.ttl(f"{name}missing") <= 5
    assert 5 < await api.state.redis.ttl(f"{name}hot") <= 60
    await cached.invalidate(tenant.id)
    with pytest.raises(AssertionError, match="cache should have"):
        await resolved(cached, tenant, "hot")


async def test_redis_outage(api: Api, tenant: TestTenant) -> None:
    await push(api, tenant, "sure", 1)
    gone = Redis.from_url("redis://127.0.0.1:1", socket_connect_timeout=1)
    without = Resolver(api.state.db, gone, api.state.secret, api.state.seal)
    assert await resolved(without, tenant, "sure") == "sure@1"
    assert await resolved(without, tenant, "nobody") == "404"
    await without.invalidate(tenant.id)
    await gone.aclose()


async def test_a_change_during_a_look_up(api: Api, tenant: TestTenant) -> None:
    """What was read before a change is not remembered after it."""
    await push(api, tenant, "race", 1)

    class Slow(Resolver):
        async def _look_up(self, tenant_id: str, name: str, which: str | None) -> Any:
            found = await super()._look_up(tenant_id, name, which)
            await api.call(tenant.key, "DELETE", "/v1/adapters/race")
            return found

    assert (
        await resolved(
            Slow(api.state.db, api.state.redis, api.state.secret, api.state.seal), tenant, "race"
        )
        == "race@1"
    )
    assert (
        await resolved(
            Resolver(api.state.db, api.state.redis, api.state.secret, api.state.seal),
            tenant,
            "race",
        )
        == "404"
    )


async def test_a_burst_asks_the_database_once(api: Api, tenant: TestTenant) -> None:
    await push(api, tenant, "busy", 1)
    looked_up = 0

    class Counting(Resolver):
        async def _look_up(self, tenant_id: str, name: str, which: str | None) -> Any:
            nonlocal looked_up
            looked_up += 1
            return await super()._look_up(tenant_id, name, which)

    counting = Counting(api.state.db, api.state.redis, api.state.secret, api.state.seal)
    found = await asyncio.gather(*(resolved(counting, tenant, "busy") for _ in range(20)))
    assert set(found) == {"busy@1"}
    assert looked_up == 1


async def test_same_name_two_tenants(api: Api, tenant: TestTenant, resolver: Resolver) -> None:
    other = await api.new_tenant("other", plan="premium")
    await push(api, tenant, "shared", 1)
    assert await resolved(resolver, other, "shared") == "404"
    await push(api, other, "shared", 2)
    mine = await resolver.resolve(tenant.id, "shared", BASE, sticky="")
    theirs = await resolver.resolve(other.id, "shared", BASE, sticky="")
    assert mine.adapter is not None
    assert theirs.adapter is not None
    assert mine.adapter.digest != theirs.adapter.digest
    body = {"model": "shared", "messages": [{"role": "user", "content": "x"}]}
    for who, found in ((tenant, mine.adapter), (other, theirs.adapter)):
        answer = await api.call(who.key, "POST", "/v1/chat/completions", json=body)
        assert answer.headers["x-tenora-adapter-digest"] == found.digest
        assert found.digest[7:15] in answer.json()["choices"][0]["message"]["content"]
