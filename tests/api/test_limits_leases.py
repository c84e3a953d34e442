"""Leases: parallel places over several workers, after a crash, a cancellation and an upgrade."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from limits_harness import HandClock, refused, tenant_of
from tenora_platform.errors import RateLimitedError
from tenora_platform.limits.service import Hold, Limits
from tenora_platform.limits.shared import Settlement, SharedLimits, Want
from tenora_platform.operations.metrics import Metrics


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


@pytest.mark.parametrize("lost", [False, True])
async def test_renewing_does_not_bring_back_what_was_settled_meanwhile(
    limits: Limits, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """The hold ends after the ids to renew were collected, before the renewal is done; also where
    Redis has lost everything, so that it is taken again."""
    tenant = tenant_of(parallel=2, key={"parallel": 2})
    ends, stays = await limits.acquire(tenant, 1), await limits.acquire(tenant, 1)
    if lost:
        await redis_client.delete(*await redis_client.keys(f"*{tenant.tenant_id}*"))
    step = "retake" if lost else "renew"
    sent = getattr(SharedLimits, step)

    async def settled_first(self: SharedLimits, *args: Any) -> Any:
        await ends.settle(1)
        return await sent(self, *args)

    monkeypatch.setattr(SharedLimits, step, settled_first)
    await limits._renew([ends, stays])
    now = await limits.now(tenant)
    assert now.key is not None
    assert (now.parallel, now.key.parallel) == (1, 1)
    await stays.settle(1)
    assert (await limits.now(tenant)).parallel == 0


async def test_leases_of_a_version_before_count_until_they_end(
    limits: Limits, redis_client: Redis
) -> None:
    """It wrote them into the same set, the oldest without a number of sequences (one each), and
    renews and removes them there beside this one; they die like all others."""
    tenant = tenant_of(parallel=6)
    leases = f"tenora:limits:{{{tenant.tenant_id}}}:parallel"
    now_s, _ = await redis_client.time()
    far, soon = now_s * 1000 + 30_000, now_s * 1000 + 1_000
    await redis_client.zadd(leases, {"hold_old": far, "hold_older": soon, "hold_new:3": far})
    assert (await limits.now(tenant)).parallel == 5
    with pytest.raises(RateLimitedError):
        await limits.acquire(tenant, 1, 2)
    hold = await limits.acquire(tenant, 1)
    await redis_client.zadd(leases, {"hold_new:3": far + 10_000})  # renewed by its process
    await redis_client.zrem(leases, "hold_old")  # settled by its process
    assert (await limits.now(tenant)).parallel == 5
    await asyncio.sleep(2.1)
    assert (await limits.now(tenant)).parallel == 4
    await hold.settle(1)
    assert (await limits.now(tenant)).parallel == 3
    await redis_client.zrem(leases, "hold_new:3")
    assert (await limits.now(tenant)).parallel == 0


async def test_what_was_sent_twice_is_done_once(limits: Limits) -> None:
    """A connection that breaks before the answer: the client sends it again."""
    tenant = tenant_of(rpm=10, tpm=1000, parallel=5, key={"rpm": 10})
    want = Want(1, 100, "hold_twice:2", 2)
    shared = limits._shared
    await shared.take(tenant, want)
    again = (await shared.take(tenant, want)).now
    assert (again.requests.used, again.tokens.used, again.plan.parallel) == (1, 100, 2)
    for _ in range(2):
        await shared.settle(Settlement(tenant, want.lease, 40))
        now = await limits.now(tenant)
        assert (now.requests.used, now.tokens.used, now.parallel) == (1, 40, 0)


async def test_a_settlement_that_comes_after_its_lease_still_counts(
    by_hand: Limits, clock: HandClock
) -> None:
    tenant = tenant_of(tpm=1000, parallel=5)
    hold = await by_hand.acquire(tenant, 900)
    await clock.move(31_000)
    other = await by_hand.acquire(tenant, 10)
    assert (await by_hand.now(tenant)).parallel == 1, "its place is free"
    await hold.settle(300)
    now = await by_hand.now(tenant)
    assert (now.tokens.used, now.parallel) == (310, 1)
    await other.settle(10)


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
