"""Whoever can write to Redis: each key that a served platform keeps there, replaced by garbage, cut
off, of another type, or by what another tenant's holds. Requests are answered as before, by the
right tenant's right to the right adapter; nothing is billed that was not used; no work stops."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from packed_adapters import packed, shared_tier
from people import session_of_key
from tenora_platform import marks
from tenora_platform.background import _mark
from tenora_platform.budgets.true_up import TrueUp
from tenora_platform.history.sampler import HistorySampler
from tenora_platform.installation import Installation
from tenora_platform.memory.history import PageHistory
from tenora_platform.probing.pace import Pace
from tenora_platform.registry.import_places import import_place
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rollouts.outcomes import OfAlias
from tenora_platform.usage.copies import CopyReader
from tenora_platform.usage.sink import UsageSink

_ID = r"[A-Za-z0-9_-]+"
KINDS = {
    "mark": r"tenora:installation",
    "processes": r"tenora:processes",
    "epoch of keys": r"tenora:auth:epoch",
    "epoch of a tenant's keys": rf"tenora:auth:epoch:{_ID}",
    "identity": r"tenora:auth:key:[0-9a-f:]+",
    "session that ended": r"tenora:auth:over:[0-9a-f]{64}",
    "sign-in attempts": r"tenora:sign_in:(address|key|of):.+",
    "epoch of names": rf"tenora:models:{_ID}:epoch",
    "name": rf"tenora:models:{_ID}:means:.+",
    "limits: holds": rf"tenora:limits:\{{{_ID}\}}:holds",
    "limits: late": rf"tenora:limits:\{{{_ID}\}}:late",
    "limits: window": rf"tenora:limits:\{{{_ID}\}}:({_ID}:)?window",
    "limits: parallel": rf"tenora:limits:\{{{_ID}\}}:({_ID}:)?parallel",
    "limits: probe": r"tenora:limits:probe",
    "budgets": r"tenora:budgets",
    "budgets: spent": rf"tenora:budgets:\{{{_ID}\}}:spent",
    "budgets: holds": rf"tenora:budgets:\{{{_ID}\}}:holds",
    "budgets: events": rf"tenora:budgets:\{{{_ID}\}}:events",
    "budgets: pending": rf"tenora:budgets:\{{{_ID}\}}:pending",
    "budgets: stored": rf"tenora:budgets:\{{{_ID}\}}:stored",
    "budgets: lengths": rf"tenora:budgets:\{{{_ID}\}}:lengths",
    "budgets: compared": rf"tenora:budgets:\{{{_ID}\}}:compared",
    "budgets: corrections": r"tenora:budgets:corrections",
    "usage": r"tenora:usage:sealed",
    "answers": r"tenora:answers:\d+",
    "ended": r"tenora:ended",
    "outcomes": rf"tenora:outcomes:\{{{_ID}\}}:{_ID}:{_ID}(:\d+)?",
    "memory: index": r"tenora:memory:index",
    "memory: at": r"tenora:memory:at:\d+",
    "memory: taken": r"tenora:memory:taken:\d+",
    "probing": r"tenora:probing",
    "probing: rest": r"tenora:probing:rest",
    "since": r"tenora:since:.+",
    "imports": r"tenora:imports",
    "adapter": r"tenora:adapter:[0-9a-f]+:sha256:[0-9a-f]{64}",
    "heat": r"tenora:adapter-heat:[0-9a-f]+",
}
"""A new kind is not known here, and fails the first test until it is."""

SEEN_SELDOM = {
    "limits: late",
    "limits: probe",
    "limits: parallel",
    "budgets: holds",
    "budgets: pending",
}
"""Are there for the length of a request, or not at all."""

COST = {"budget": "1", "budget_day": "0.5"}
LIMITS = {"requests_per_min": 100_000, "tokens_per_min": 10**9, "parallel_requests": 100}


def kind_of(key: str) -> str:
    kinds = [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, key)]
    assert len(kinds) == 1, f"{key} is of no kind that is known here, or of several: {kinds}"
    return kinds[0]


@dataclass
class Somebody:
    tenant: TestTenant
    digest: str
    adapter_id: str
    asked: int = 0


@dataclass
class World:
    api: Api
    people: list[Somebody]
    url: str
    sink: UsageSink

    @property
    def redis(self) -> Redis:
        return self.api.state.redis

    async def keys(self) -> list[str]:
        return sorted([key.decode() async for key in self.redis.scan_iter(count=1000)])


async def newcomer(api: Api, name: str, seed: int) -> Somebody:
    tenant = await api.new_tenant(name, plan="watched", limits={"requests_per_min": 90_000})
    files = adapter_form(api.engine.model, "bot", seed=seed)
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202, made.text
    path = "/v1/adapters/bot/versions/1"
    async with asyncio.timeout(30):
        while (found := (await api.call(tenant.key, "GET", path)).json())["state"] != "active":
            await IntakeWorker(api.state).run_once()
    body = {"targets": [{"version": 1, "weight": 100}]}
    put = await api.call(tenant.key, "PUT", "/v1/adapters/bot/aliases/prod", json=body)
    assert put.status_code == 200, put.text
    listed = (await api.call(tenant.key, "GET", "/v1/adapters/bot")).json()
    return Somebody(tenant, found["digest"], listed["id"])


@pytest.fixture(scope="module")
async def world(api: Api, redis_url: str) -> World:
    await api.put_plan("watched", {**COST, **LIMITS})
    people = [await newcomer(api, name, seed) for seed, name in enumerate(("one", "two"), 1)]
    return World(api, people, redis_url, UsageSink(api.engine, api.state.db))


async def filled(world: World) -> None:
    """Every kind of key is there."""
    api, state, redis = world.api, world.api.state, world.redis
    await state.auth.invalidate()
    await state.auth.invalidate(*(each.tenant.id for each in world.people))
    for each in world.people:
        await state.resolver.invalidate(each.tenant.id)
    for each in world.people:
        await chats(world, each)
    await sign_in_and_out(world)
    await state.answers._flush()
    await state.outcomes.flush()
    await state.flights.key_revoked("key_of_nobody")
    await PageHistory(redis, state.seal).keep_once(api.engine)
    pace = Pace(api.engine, redis, state.seal, set())
    await pace._rest(30)
    await pace._tell()
    await state.since.look(["something"])
    await redis.eval("redis.call('ZADD', KEYS[1], 'INF', 'gone:upload')", 1, "tenora:imports")
    true_up = TrueUp(state.db, state.budgets.store, state.metrics, state.seal)
    await true_up.run_once()
    spent = f"tenora:budgets:{{{world.people[0].tenant.id}}}:spent"
    await redis.hincrby(spent, f"m:{time.strftime('%Y-%m', time.gmtime())}:USD", 7)
    assert await true_up.compare(world.people[0].tenant.id)
    tier = shared_tier(world.url)
    for seed in (1, 2):
        await asyncio.to_thread(tier.put, packed(seed))
    await asyncio.to_thread(tier.use, {packed(1).digest: 1})
    tier.close()
    await marks.look(redis, _mark(state))
    await state.presence._once()


async def chats(world: World, who: Somebody) -> None:
    """Its own adapter answers."""
    body = {
        "model": "bot@prod",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 5,
    }
    answer = await world.api.call(who.tenant.key, "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    ran = world.api.engine.requests[-1]
    assert ran.adapter is not None
    assert (ran.adapter.digest, ran.context["tenant_id"]) == (who.digest, who.tenant.id)
    who.asked += 1


async def a_day(world: World) -> None:
    """All that reads Redis reads it; nothing of it fails."""
    api, state = world.api, world.api.state
    for each in world.people:
        await chats(world, each)
        me = (await api.call(each.tenant.key, "GET", "/v1/me")).json()
        assert me["tenant"]["id"] == each.tenant.id
        for path in ("/v1/limits", "/v1/models", "/v1/usage", "/v1/adapters/bot"):
            answer = await api.call(each.tenant.key, "GET", path)
            assert answer.status_code == 200, f"{path}: {answer.text}"
    await sign_in_and_out(world)
    for path in (
        "/readyz",
        "/metrics",
        "/admin/v1/processes",
        "/admin/v1/reconciliation",
        "/admin/v1/probing",
        "/admin/v1/engine/pages/history",
        f"/admin/v1/engine/pages/history?at={time.time()}",
        "/admin/v1/engine/adapters",
    ):
        answer = await api.admin("GET", path)
        assert answer.status_code in (200, 404), f"{path}: {answer.text}"
    await work(world)
    async with import_place(world.redis, "tenant_of_a_day"):
        pass
    tier = shared_tier(world.url)
    for seed in (1, 2):
        found = await asyncio.to_thread(tier.get, packed(seed).digest)
        assert found is None or bool((found.pages == packed(seed).pages).all())
    await asyncio.to_thread(tier.hottest, 5)
    await asyncio.to_thread(tier.use, {packed(1).digest: 1})
    assert await asyncio.to_thread(tier.put, packed(1))
    assert "shared_errors" not in tier.counters()
    tier.close()
    assert state.outages == {}


async def sign_in_and_out(world: World) -> None:
    signed = await session_of_key(world.api, world.people[0].tenant.key)
    assert (await signed.call("POST", "/auth/logout")).status_code == 200


async def work(world: World) -> None:
    """What workers and processes do beside requests, once."""
    state, redis = world.api.state, world.redis
    reader = CopyReader(redis, state.seal, state.db, world.sink, state.metrics, age_s=-1.0)
    await reader.run_once()
    await TrueUp(state.db, state.budgets.store, state.metrics, state.seal).run_once()
    await state.budgets._renew()
    await state.limits._renew_all()
    await state.limits._shared.probe()
    await HistorySampler(state).sample()
    await state.presence._once()
    assert await state.presence.read()
    await state.since.look(["something"])
    now_s = time.time()
    for each in world.people:
        of = OfAlias(each.tenant.id, each.adapter_id, "prod")
        tallies = await state.outcomes.between(of, now_s - 600, now_s)
        assert all(tally.ttft_ms is None or tally.ttft_ms > 0 for tally in tallies.values())
        await state.outcomes.answered(of, 1)
    await state.answers._flush()
    await state.outcomes.flush()
    pace = Pace(world.api.engine, redis, state.seal, set())
    assert await pace._rest_s() <= 3600
    await state.flights.key_revoked("key_of_nobody")
    await marks.look(redis, _mark(state))


GARBAGE = b"\xff\x00 garbage \xc3("


async def refill(redis: Redis, key: str, values: list[tuple[bytes, bytes]]) -> None:
    """The same type with other members: (name, value) as the type has them."""
    kind = await redis.type(key)
    if kind != b"string":
        await redis.delete(key)
    for name, value in values:
        if kind == b"string":
            await redis.set(key, value)
        elif kind == b"hash":
            await redis.hset(key, name, value)
        elif kind == b"zset":
            await redis.zadd(key, {name: float("inf")})
        elif kind == b"set":
            await redis.sadd(key, name)
        elif kind == b"list":
            await redis.rpush(key, value)
        else:
            await redis.xadd(key, {name: value})


async def members(redis: Any, key: str) -> list[tuple[bytes, bytes]]:
    match await redis.type(key):
        case b"string":
            return [(b"", await redis.get(key))]
        case b"hash":
            found = await redis.hgetall(key)
            return list(found.items())
        case b"zset":
            return [(each, each) for each in await redis.zrange(key, 0, -1)]
        case b"set":
            return [(each, each) for each in await redis.smembers(key)]
        case b"list":
            return [(each, each) for each in await redis.lrange(key, 0, -1)]
        case _:
            found = await redis.xrange(key)
            return [pair for _, fields in found for pair in fields.items()]


async def garbage(redis: Redis, key: str) -> None:
    await redis.set(key, GARBAGE)


async def another_type(redis: Redis, key: str) -> None:
    kind = await redis.type(key)
    await redis.delete(key)
    await (redis.hset(key, "a", "b") if kind == b"list" else redis.rpush(key, GARBAGE))


async def strange_members(redis: Redis, key: str) -> None:
    there = await members(redis, key)
    strange = [(name, GARBAGE) for name, _ in there] + [(GARBAGE, GARBAGE)]
    await refill(redis, key, strange)


async def cut_off(redis: Redis, key: str) -> None:
    there = await members(redis, key)
    halves = [(name, value[: len(value) // 2]) for name, value in there]
    if await redis.type(key) in (b"zset", b"set"):
        halves = [(name[: len(name) // 2], name) for name, _ in halves]
    await refill(redis, key, halves)


async def no_numbers(redis: Redis, key: str) -> None:
    for number in (b"nan", b"-inf", b"1e999", b"9" * 40, b"-1"):
        there = await members(redis, key)
        await refill(redis, key, [(name, number) for name, _ in there])


DAMAGES = [garbage, another_type, strange_members, cut_off, no_numbers]


async def until_booked(world: World) -> None:
    """What was asked is in the books, once; nothing else."""
    async with asyncio.timeout(20):
        while True:
            counts = [await sequences(world, each) for each in world.people]
            if counts == [each.asked for each in world.people]:
                return
            asked = [each.asked for each in world.people]
            assert all(count <= most for count, most in zip(counts, asked, strict=True)), (
                "more is billed than was asked"
            )
            await asyncio.sleep(0.02)


async def sequences(world: World, who: Somebody) -> int:
    page = (await world.api.call(who.tenant.key, "GET", "/v1/usage")).json()
    return sum(result["sequences"] for day in page["data"] for result in day["results"])


async def test_every_key_that_a_platform_writes_is_known_here(world: World) -> None:
    await world.redis.flushdb()
    await filled(world)
    async with asyncio.timeout(20):  # the usage sink comes when it comes
        while "budgets: stored" not in {kind_of(key) for key in await world.keys()}:
            await chats(world, world.people[0])
            await asyncio.sleep(0.1)
    seen = {kind_of(key) for key in await world.keys()}
    assert KINDS.keys() - seen <= SEEN_SELDOM
    await a_day(world)
    await until_booked(world)


ROUNDS = [list(KINDS)[start::3] for start in range(3)]
"""Kinds that are damaged at once; an epoch's not with what is void without it."""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_no_kind_of_damage_shows(world: World, damage: Any) -> None:
    for kinds in ROUNDS:
        await filled(world)
        for key in await world.keys():
            if kind_of(key) in kinds:
                await damage(world.redis, key)
        await a_day(world)
    await until_booked(world)


async def test_what_another_tenants_key_holds_does_not_count_under_this_one(world: World) -> None:
    """All keys of a kind, each with what the next one held."""
    for kinds in ROUNDS:
        await filled(world)
        there = await world.keys()
        for kind in kinds:
            of_kind = [key for key in there if kind_of(key) == kind]
            held = [await world.redis.dump(key) for key in of_kind]
            for key, value in zip(of_kind, [*held[1:], *held[:1]], strict=True):
                if value is not None:  # it may have run out meanwhile
                    await world.redis.restore(key, 60_000, value, replace=True)
        await a_day(world)
    await until_booked(world)


async def test_a_key_that_was_revoked_does_not_come_back_with_its_copy(world: World) -> None:
    """Who kept the sealed value and the epoch that it was good for has a few seconds at most."""
    api, redis = world.api, world.redis
    tenant = await api.new_tenant("revoked", plan="watched")
    assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 200
    kept = {key: await redis.dump(key) for key in await world.keys() if ":auth:" in key}
    path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    assert (await api.admin("DELETE", path)).status_code in (200, 204)
    assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 401
    for key, value in kept.items():
        assert isinstance(value, bytes)
        await redis.restore(key, 0, value, replace=True)
    api.state.seal._clock = lambda: time.time() + api.state.settings.auth_cache_s
    try:
        assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 401
    finally:
        api.state.seal._clock = time.time
    await redis.flushdb()


async def test_forged_values_are_counted(world: World) -> None:
    api = world.api
    await filled(world)
    for key in await world.keys():
        if kind_of(key) in ("identity", "name"):
            await world.redis.set(key, GARBAGE)
        elif kind_of(key) == "limits: window":
            await another_type(world.redis, key)
    for each in world.people:
        await chats(world, each)
    told = api.state.metrics.text().decode()
    for kind in ("identity", "model", "counter"):
        (count,) = re.findall(rf'tenora_redis_rejected_total{{kind="{kind}"}} (\S+)', told)
        assert float(count) > 0


async def test_a_mark_that_is_none_is_replaced_and_another_installations_is_not(
    world: World,
) -> None:
    redis, mine = world.redis, _mark(world.api.state)
    await redis.set(marks.KEY, GARBAGE)
    await marks.look(redis, mine)
    assert await redis.get(marks.KEY) == mine.encode()
    await redis.set(marks.KEY, marks.mark_of(Installation("other"), world.api.state.secret))
    with pytest.raises(marks.TakenError):
        await marks.look(redis, mine)
    await redis.delete(marks.KEY)
