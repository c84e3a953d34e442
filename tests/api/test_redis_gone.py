"""Redis killed, hanging and emptied under requests: limits are local for a while and say so, and
when it is back nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from api_harness import Api, TestTenant
from limits_harness import refused, tenant_of
from platform_fixtures import MakeApi
from tenora_platform.auth import TenantContext
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.errors import RateLimitedError, UnavailableError
from tenora_platform.limits.scripts import SLOT_MS
from tenora_platform.limits.service import Limits
from tenora_platform.operations.metrics import Metrics
from tenora_platform.redis_client import open_redis

ASK = {"model": "fake-base", "prompt": "0123456789", "max_tokens": 6}
USED = 16
LEASE_S = 1.5


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging server is given up sooner than in earnest."""
    monkeypatch.setattr("tenora_platform.redis_client.ANSWER_S", 0.5)


MakeGone = Callable[..., Any]


@pytest.fixture
def over(make_api: MakeApi, valkey: EmbeddedValkey) -> MakeGone:
    """`async with over(...) as (api, tenant):` an application over the Valkey of this test."""

    @asynccontextmanager
    async def made(
        limits: dict[str, int], fallback_s: float = 60
    ) -> AsyncIterator[tuple[Api, TestTenant]]:
        more = {"redis_url": valkey.url, "limits_fallback_s": fallback_s, "lease_s": LEASE_S}
        async with make_api(**more) as api:
            await api.put_plan("gone", limits)
            yield api, await api.new_tenant(plan="gone")

    return made


async def ask(api: Api, tenant: TestTenant) -> httpx.Response:
    return await api.call(tenant.key, "POST", "/v1/completions", json=ASK)


async def shown(api: Api, tenant: TestTenant) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", "/v1/limits")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 20
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def shared_again(api: Api, tenant: TestTenant) -> dict[str, Any]:
    async def is_shared() -> bool:
        return not (await shown(api, tenant))["local"]

    await until(is_shared)
    return await shown(api, tenant)


async def metric(api: Api, name: str) -> float:
    text = (await api.http.get("/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


async def test_a_killed_redis_leaves_local_limits(over: MakeGone, valkey: EmbeddedValkey) -> None:
    async with over({"requests_per_min": 5, "tokens_per_min": 1000}) as (api, tenant):
        for _ in range(2):
            answer = await ask(api, tenant)
            assert answer.status_code == 200, answer.text
            assert "x-tenora-limits" not in answer.headers
        os.kill(int((valkey.folder / "valkey.pid").read_text()), signal.SIGKILL)
        for left in ("2", "1", "0"):
            answer = await ask(api, tenant)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-tenora-limits"] == "local"
            assert answer.headers["x-ratelimit-remaining-requests"] == left, "two were known"
        over_limit = await ask(api, tenant)
        assert (over_limit.status_code, over_limit.headers["x-tenora-limits"]) == (429, "local")
        ready = await api.http.get("/readyz")
        assert ready.status_code == 200
        assert any(
            "Rate limits are checked without it" in line for line in ready.json()["warnings"]
        )
        assert await metric(api, "tenora_limits_local") == 1
        assert await metric(api, "tenora_limits_unwritten") > 0
        assert (await shown(api, tenant))["requests_per_min"]["used"] == 5

        valkey.stop()
        valkey.start()
        now = await shared_again(api, tenant)
        # The server that was killed has taken what it knew with it; the rest was told the new one.
        assert now["requests_per_min"]["used"] == 3
        assert now["tokens_per_min"]["used"] == 3 * USED
        assert now["parallel_requests"]["used"] == 0
        assert await metric(api, "tenora_limits_local") == 0
        assert await metric(api, "tenora_limits_unwritten") == 0
        assert "x-tenora-limits" not in (await ask(api, tenant)).headers
        assert (await api.http.get("/readyz")).json()["warnings"] == []


async def test_a_hanging_redis_under_running_requests(
    over: MakeGone, valkey: EmbeddedValkey
) -> None:
    """It keeps what it knows: what ends, begins, and begins and ends while it hangs is all told
    afterwards, once."""
    async with over({"requests_per_min": 100, "tokens_per_min": 10_000}) as (api, tenant):
        pid = int((valkey.folder / "valkey.pid").read_text())
        api.engine.gate = asyncio.Event()
        before = [asyncio.create_task(ask(api, tenant)) for _ in range(2)]
        await until(lambda: in_flight(api, 2))
        os.kill(pid, signal.SIGSTOP)
        try:
            during = [asyncio.create_task(ask(api, tenant)) for _ in range(3)]
            await until(lambda: in_flight(api, 5))
            api.engine.gate.set()
            answers = await asyncio.gather(*before, *during)
            api.engine.gate = asyncio.Event()
            after = asyncio.create_task(ask(api, tenant))
            await until(lambda: in_flight(api, 6))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [answer.status_code for answer in answers] == [200] * 5
        assert [answer.headers.get("x-tenora-limits") for answer in answers] == [
            *[None] * 2,
            *["local"] * 3,
        ]
        assert (await shared_again(api, tenant))["parallel_requests"]["used"] == 1
        api.engine.gate.set()
        assert (await after).status_code == 200
        now = await shown(api, tenant)
        assert now["tokens_per_min"]["used"] == 6 * USED
        assert now["parallel_requests"]["used"] == 0
        # An admission that was under way when it began to hang may have been counted by both.
        assert 6 <= now["requests_per_min"]["used"] <= 9


async def in_flight(api: Api, count: int) -> bool:
    return len(api.engine.requests) == count


async def test_after_the_time_is_over_it_is_503(over: MakeGone, valkey: EmbeddedValkey) -> None:
    async with over({"requests_per_min": 100}, fallback_s=1.0) as (api, tenant):
        valkey.stop()
        assert (await ask(api, tenant)).status_code == 200
        await asyncio.sleep(1.1)
        answer = await ask(api, tenant)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
        assert (await api.http.get("/readyz")).status_code == 503
        valkey.start()

        async def serves() -> bool:
            return (await ask(api, tenant)).status_code == 200

        await until(serves)
        assert (await api.http.get("/readyz")).status_code == 200


async def test_an_emptied_redis_harms_no_running_request(
    over: MakeGone, valkey: EmbeddedValkey
) -> None:
    limits = {"requests_per_min": 2, "tokens_per_min": 10_000, "parallel_requests": 2}
    async with over(limits) as (api, tenant):
        api.engine.gate = asyncio.Event()
        running = [asyncio.create_task(ask(api, tenant)) for _ in range(2)]
        await until(lambda: in_flight(api, 2))
        assert (await ask(api, tenant)).status_code == 429
        async with Redis.from_url(valkey.url) as redis:
            await redis.flushall()
        now = await shown(api, tenant)
        assert now["requests_per_min"]["used"] == now["tokens_per_min"]["used"] == 0

        async def places_taken_again() -> bool:
            return bool((await shown(api, tenant))["parallel_requests"]["used"] == 2)

        await until(places_taken_again)
        assert (await ask(api, tenant)).status_code == 429
        api.engine.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        now = await shown(api, tenant)
        assert now["parallel_requests"]["used"] == now["tokens_per_min"]["used"] == 0
        assert (await ask(api, tenant)).status_code == 200


async def test_a_request_waits_for_a_hanging_redis_once(valkey: EmbeddedValkey) -> None:
    """After the first timeout commands fail at once, until a ping is answered."""
    redis = open_redis(valkey.url)
    pid = int((valkey.folder / "valkey.pid").read_text())
    await redis.set("a", 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Exception, match="Timeout"):
            await redis.get("a")
        started = time.monotonic()
        for _ in range(50):
            with pytest.raises(Exception, match="a moment ago"):
                await redis.get("a")
        assert time.monotonic() - started < 5, "50 would have been 25 s"
    finally:
        os.kill(pid, signal.SIGCONT)

    async def answers() -> bool:
        try:
            return await redis.get("a") == b"1"
        except Exception:
            return False

    await until(answers)
    await redis.aclose()


def alone(url: str, processes: int = 1, fallback_s: float = 60) -> Limits:
    return Limits(
        Redis.from_url(url),
        lease_s=30,
        metrics=Metrics(),
        fallback_s=fallback_s,
        processes=lambda: processes,
    )


async def passes(limits: Limits, tenant: TenantContext, tries: int, tokens: int = 1) -> int:
    passed = 0
    for _ in range(tries):
        try:
            await (await limits.acquire(tenant, tokens)).settle(tokens)
            passed += 1
        except RateLimitedError:
            pass
    return passed


@pytest.mark.parametrize("processes", [1, 3])
async def test_all_processes_together_keep_the_limit(
    valkey: EmbeddedValkey, processes: int
) -> None:
    """Also in the minute in which Redis went, where they have used it alike."""
    tenant = tenant_of(rpm=30, tpm=300, key={"rpm": 24})
    workers = [alone(valkey.url, processes) for _ in range(processes)]
    for _ in range(9 // processes):
        for worker in workers:
            assert await passes(worker, tenant, 1) == 1
    for worker in workers:
        await worker.now(tenant)
    valkey.stop()
    assert sum([await passes(worker, tenant, 30) for worker in workers]) == 24 - 9
    assert "for this API key" in (await refused(workers[0], tenant)).message


async def test_local_parallel_limits_count_what_runs(valkey: EmbeddedValkey) -> None:
    tenant = tenant_of(parallel=4)
    worker = alone(valkey.url, processes=2)
    first = await worker.acquire(tenant, 1)
    valkey.stop()
    second = await worker.acquire(tenant, 1)
    await refused(worker, tenant)  # half of the four are this process'
    await first.settle(1)
    third = await worker.acquire(tenant, 1)
    await second.release()
    await third.release()
    assert (await worker.now(tenant)).parallel == 0


async def test_what_is_given_back_locally_is_there_again(valkey: EmbeddedValkey) -> None:
    tenant = tenant_of(rpm=2, tpm=100)
    worker = alone(valkey.url)
    valkey.stop()
    hold = await worker.acquire(tenant, 90)
    await hold.release()
    hold = await worker.acquire(tenant, 90)
    await hold.settle(10)
    assert (await worker.now(tenant)).tokens.remaining == 90
    await (await worker.acquire(tenant, 90)).settle(90)
    error = await refused(worker, tenant)
    assert 59_000 < error.retry_after_ms <= 60_250


async def test_a_slot_that_ends_between_the_two_loses_nothing(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted in one slot must not be given back to the one before it."""
    tenant = tenant_of(rpm=2, tpm=100)
    worker = alone(valkey.url)
    valkey.stop()
    late_ms = "tenora_platform.limits.local._now_ms"
    monkeypatch.setattr(late_ms, lambda: int(time.monotonic() * 1000) + SLOT_MS)
    for _ in range(3):
        await (await worker.acquire(tenant, 90)).release()
    assert (await worker.now(tenant)).tokens.remaining == 100


async def test_no_more_waits_than_can_be_kept(
    valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.limits.backlog.SERVED_MAX", 10)
    tenant = tenant_of()
    worker = alone(valkey.url)
    valkey.stop()
    for _ in range(5):
        await (await worker.acquire(tenant, 1)).settle(1)
    with pytest.raises(UnavailableError):
        await worker.acquire(tenant, 1)
