"""Limits: what is reserved, settled and freed, over several workers and after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from api_harness import Api
from tenora_platform.auth import PlanTerms, TenantContext
from tenora_platform.errors import BadRequestError, RateLimitedError
from tenora_platform.ids import new_id
from tenora_platform.limits import service
from tenora_platform.limits.scripts import RENEW, RETAKE
from tenora_platform.limits.service import Hold, Limits, duration
from tenora_platform.operations.metrics import Metrics


def tenant_of(
    rpm: int | None = None, tpm: int | None = None, parallel: int | None = None
) -> TenantContext:
    """A new tenant with these limits."""
    plan = PlanTerms(
        name="p",
        sla_class="default",
        tiers=("default",),
        ttft_ms=None,
        tpot_ms=None,
        weight=1.0,
        memory_share=None,
        requests_per_min=rpm,
        tokens_per_min=tpm,
        parallel_requests=parallel,
        adapters=None,
        adapter_bytes=None,
        budget=None,
    )
    return TenantContext(
        tenant_id=new_id("tenant"), name="t", plan=plan, key_id="k", scopes=(), namespace="n"
    )


@pytest.fixture(scope="module")
async def redis_client(redis_url: str) -> AsyncIterator[Redis]:
    client: Redis = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def limits(redis_client: Redis) -> Limits:
    return Limits(redis_client, lease_s=30, metrics=Metrics())


async def refused(limits: Limits, tenant: TenantContext, tokens: int = 1) -> RateLimitedError:
    with pytest.raises(RateLimitedError) as caught:
        await limits.acquire(tenant, tokens)
    return caught.value


async def test_requests_a_minute(limits: Limits) -> None:
    tenant = tenant_of(rpm=3)
    for left in (2, 1, 0):
        hold = await limits.acquire(tenant, 10)
        assert hold.headers["x-ratelimit-limit-requests"] == "3"
        assert hold.headers["x-ratelimit-remaining-requests"] == str(left)
        await hold.settle(10)
    error = await refused(limits, tenant)
    assert error.type == "requests"
    # One request comes back every 20 s; the first went out a moment ago.
    assert 15_000 < error.retry_after_ms <= 20_000
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.headers["x-should-retry"] == "true"


async def test_the_wait_that_is_told_is_the_wait_that_helps(limits: Limits) -> None:
    tenant = tenant_of(rpm=600)
    for _ in range(600):
        await (await limits.acquire(tenant, 0)).settle(0)

    async def use_up() -> None:
        for _ in range(600):  # a few have come back meanwhile
            await (await limits.acquire(tenant, 0)).settle(0)

    with pytest.raises(RateLimitedError) as caught:
        await use_up()
    await asyncio.sleep(caught.value.retry_after_ms / 1000 + 0.002)
    await (await limits.acquire(tenant, 0)).settle(0)


async def test_tokens_are_reserved_then_settled_to_what_was_used(limits: Limits) -> None:
    tenant = tenant_of(tpm=1000)
    hold = await limits.acquire(tenant, 900)
    error = await refused(limits, tenant, 200)
    assert error.type == "tokens"
    assert error.retry_after_ms <= 60_000 * 100 / 1000
    await hold.settle(100)
    now = await limits.now(tenant)
    assert now.tokens.remaining is not None
    assert 900 <= now.tokens.remaining <= 910
    await (await limits.acquire(tenant, 850)).settle(850)


async def test_more_than_was_reserved_leaves_a_debt(limits: Limits) -> None:
    tenant = tenant_of(tpm=1000)
    hold = await limits.acquire(tenant, 100)
    await hold.settle(1500)
    error = await refused(limits, tenant, 1)
    assert 25_000 < error.retry_after_ms <= 31_000  # half a minute's worth of debt


async def test_what_no_waiting_would_help_is_refused_for_good(limits: Limits) -> None:
    """More tokens than a minute has, more sequences than may run: nothing of it is counted."""
    tenant = tenant_of(rpm=5, tpm=100, parallel=4)
    for tokens, sequences, words in ((101, 1, "101 tokens"), (10, 5, "5 sequences")):
        with pytest.raises(BadRequestError, match=words) as caught:
            await limits.acquire(tenant, tokens, sequences)
        assert caught.value.code == "request_exceeds_limit"
        assert caught.value.headers["x-should-retry"] == "false"
    await (await limits.acquire(tenant, 100, 4)).settle(130)
    error = await refused(limits, tenant, 100)
    assert 60_000 < error.retry_after_ms <= 79_000, "what was used beyond is a debt"


async def test_each_sequence_of_a_request_takes_a_parallel_place(redis_client: Redis) -> None:
    tenant = tenant_of(parallel=5)
    worker = Limits(redis_client, lease_s=0.3, metrics=Metrics())
    keeping = asyncio.create_task(worker.keep_leases())
    hold = await worker.acquire(tenant, 1, 3)
    assert (await worker.now(tenant)).parallel == 3
    with pytest.raises(RateLimitedError, match="parallel"):
        await worker.acquire(tenant, 1, 3)
    other = await worker.acquire(tenant, 1, 2)
    await asyncio.sleep(0.8)  # all of their leases are renewed
    assert (await worker.now(tenant)).parallel == 5
    await other.settle(1)
    assert (await worker.now(tenant)).parallel == 3
    await hold.release()
    keeping.cancel()
    assert (await worker.now(tenant)).parallel == 0


async def test_a_released_hold_cost_nothing(limits: Limits) -> None:
    tenant = tenant_of(rpm=5, tpm=100, parallel=1)
    async with await limits.acquire(tenant, 80):
        assert (await limits.now(tenant)).parallel == 1
    now = await limits.now(tenant)
    assert (now.requests.remaining, now.tokens.remaining, now.parallel) == (5, 100, 0)


async def test_the_parallel_cap_holds_over_workers(redis_client: Redis) -> None:
    workers = [Limits(redis_client, lease_s=30, metrics=Metrics()) for _ in range(4)]
    tenant = tenant_of(parallel=5)

    async def attempt(worker: Limits) -> Hold | None:
        try:
            return await worker.acquire(tenant, 1)
        except RateLimitedError:
            return None

    holds = await asyncio.gather(*(attempt(workers[i % 4]) for i in range(40)))
    held = [hold for hold in holds if hold is not None]
    assert len(held) == 5
    error = await refused(workers[0], tenant)
    assert "parallel" in error.message
    await held[0].settle(1)
    assert await attempt(workers[1]) is not None
    assert await attempt(workers[2]) is None


async def test_a_dead_workers_places_come_back(redis_client: Redis) -> None:
    tenant = tenant_of(parallel=1)
    dead = Limits(redis_client, lease_s=0.15, metrics=Metrics())
    await dead.acquire(tenant, 1)  # nobody renews its lease
    living = Limits(redis_client, lease_s=30, metrics=Metrics())
    await refused(living, tenant)
    await asyncio.sleep(0.2)
    await (await living.acquire(tenant, 1)).settle(1)


async def test_a_living_workers_lease_is_renewed(redis_client: Redis) -> None:
    tenant = tenant_of(parallel=1)
    worker = Limits(redis_client, lease_s=0.3, metrics=Metrics())
    keeping = asyncio.create_task(worker.keep_leases())
    hold = await worker.acquire(tenant, 1)
    await asyncio.sleep(0.8)
    await refused(worker, tenant)
    await hold.settle(1)
    keeping.cancel()
    assert (await worker.now(tenant)).parallel == 0


@pytest.mark.parametrize("ran_out", [False, True])
async def test_renewing_does_not_bring_back_what_was_settled_meanwhile(
    limits: Limits, monkeypatch: pytest.MonkeyPatch, ran_out: bool
) -> None:
    """The hold ends after the ids to renew were collected, before the renewal is done; also where
    its lease had run out, so that it is taken again."""
    tenant = tenant_of(parallel=2)
    ends, stays = await limits.acquire(tenant, 1), await limits.acquire(tenant, 1)
    _, key, _ = service._keys(tenant.tenant_id)
    leases = [ends.id, stays.id]
    if ran_out:
        await limits._redis.delete(key)
    evaluate, scripts = Limits._eval, []

    async def settled_first(self: Limits, script: str, *args: Any) -> Any:
        scripts.append(script)
        if script == (RETAKE if ran_out else RENEW):
            await ends.settle(1)
        return await evaluate(self, script, *args)

    monkeypatch.setattr(Limits, "_eval", settled_first)
    await limits._renew(key, leases)
    assert await limits._redis.zrange(key, 0, -1) == [stays.id.encode()]
    await stays.settle(1)
    assert (await limits.now(tenant)).parallel == 0


async def test_the_parallel_limits_wait_is_what_the_running_need(limits: Limits) -> None:
    """The tenant's requests took 10 ms a reserved token lately, so one of 100 tokens that began
    just now needs a second, and one of 1000 ten."""
    tenant = tenant_of(parallel=2)
    for _ in range(30):
        hold = await limits.acquire(tenant, 100)
        hold.began_s -= 1.0
        await hold.settle(50)
    holds = [await limits.acquire(tenant, 1000)]
    holds.append(await limits.acquire(tenant, 1000))
    assert 9_000 < (await refused(limits, tenant)).retry_after_ms <= 11_000
    await holds.pop().settle(1)
    holds.append(await limits.acquire(tenant, 300))
    assert 2_000 < (await refused(limits, tenant)).retry_after_ms <= 3_500
    for hold in holds:
        await hold.release()


async def test_what_was_admitted_is_counted_once(limits: Limits) -> None:
    tenant = tenant_of(rpm=5, parallel=1)
    await limits.admit(tenant)
    hold = await limits.acquire(tenant, 1, requests=0)
    await limits.admit(tenant)
    with pytest.raises(RateLimitedError):
        await limits.acquire(tenant, 1, requests=0)  # parallel: the second has its request back
    assert (await limits.now(tenant)).requests.remaining == 4
    await hold.release()
    assert (await limits.now(tenant)).requests.remaining == 5


async def test_a_cancelled_request_frees_its_place(limits: Limits) -> None:
    tenant = tenant_of(parallel=1)
    started = asyncio.Event()

    async def request() -> None:
        async with await limits.acquire(tenant, 5):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(request())
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await limits.now(tenant)).parallel == 0


async def test_no_limits_no_headers(limits: Limits) -> None:
    hold = await limits.acquire(tenant_of(), 10**9)
    assert hold.headers == {}
    await hold.settle(10**9)


async def test_zero_is_a_limit(limits: Limits) -> None:
    await refused(limits, tenant_of(rpm=0))
    await refused(limits, tenant_of(parallel=0))
    await refused(limits, tenant_of(tpm=0))


steps = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps)
async def test_what_is_left_is_what_was_not_used(
    limits: Limits, steps: list[tuple[int, int]]
) -> None:
    """Within one refill's worth, the bucket is its size less the sum of what was really used."""
    tenant = tenant_of(tpm=10_000)
    used = 0
    for reserved, actual in steps:
        hold = await limits.acquire(tenant, reserved)
        await hold.settle(actual)
        await hold.settle(actual)  # once is what counts
        used += actual
    left = (await limits.now(tenant)).tokens.remaining
    assert left is not None
    assert 10_000 - used <= left <= min(10_000, 10_000 - used + 200)


def test_durations_read_as_clients_parse_them() -> None:
    assert [duration(ms) for ms in (0, 12, 999, 1000, 1500, 61_500, 360_000)] == [
        "0ms",
        "12ms",
        "999ms",
        "1s",
        "1.5s",
        "1m1.5s",
        "6m0s",
    ]


async def test_limits_over_http(api: Api) -> None:
    await api.put_plan("small", {"requests_per_min": 2, "parallel_requests": 1, "adapters": 3})
    tenant = await api.new_tenant(plan="small")
    shown = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert shown["plan"] == "small"
    assert shown["requests_per_min"] == {"limit": 2, "used": 0, "remaining": 2, "reset_ms": 0}
    assert shown["tokens_per_min"]["limit"] is None
    assert shown["parallel_requests"] == {"limit": 1, "used": 0}
    assert shown["adapters"] == 3
