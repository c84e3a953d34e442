"""Limits of a minute: what passes in any window, what is told, reserved, settled and given back."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from api_harness import Api
from limits_harness import HandClock, refused, tenant_of
from tenora_platform.auth import Caps
from tenora_platform.errors import BadRequestError, RateLimitedError
from tenora_platform.limits.scripts import WINDOW_MS
from tenora_platform.limits.service import Limits
from tenora_platform.limits.uses import duration


async def test_requests_a_minute(by_hand: Limits, clock: HandClock) -> None:
    tenant = tenant_of(rpm=3)
    for left in (2, 1, 0):
        hold = await by_hand.acquire(tenant, 10)
        assert hold.headers["x-ratelimit-limit-requests"] == "3"
        assert hold.headers["x-ratelimit-remaining-requests"] == str(left)
        await hold.settle(10)
        await clock.move(10_000)
    error = await refused(by_hand, tenant)
    assert error.type == "requests"
    # The first of the three went out 30 s ago, and its slot stays until all of it is a minute old.
    assert WINDOW_MS - 30_250 < error.retry_after_ms <= WINDOW_MS - 30_000
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert error.headers["x-should-retry"] == "true"
    assert "(3 on plan 'p')" in error.message


async def test_no_minute_has_more_than_the_limit(by_hand: Limits, clock: HandClock) -> None:
    """The bucket before this let 2 N pass within a minute: N at its start, N in its course."""
    tenant = tenant_of(rpm=60)
    times: list[int] = []
    for step in range(1200):  # three minutes, and all of the limit at once in the first
        with contextlib.suppress(RateLimitedError):
            for _ in range(60 if step == 0 else 2):
                await by_hand.admit(tenant)
                times.append(clock.now_ms)
        await clock.move(150)
    worst = max(sum(each <= other < each + 60_000 for other in times) for each in times)
    assert worst == 60
    assert len(times) == 180, "and it is used up, in each minute"


@pytest.mark.parametrize("owner", ["plan", "key"])
@pytest.mark.parametrize("what", ["requests", "tokens"])
async def test_who_waits_as_long_as_told_gets_through(
    by_hand: Limits, clock: HandClock, owner: str, what: str
) -> None:
    """And not a millisecond earlier."""
    rpm, tpm = (20, None) if what == "requests" else (None, 200)
    tenant = tenant_of(rpm, tpm) if owner == "plan" else tenant_of(key={"rpm": rpm, "tpm": tpm})
    for _ in range(20):
        await (await by_hand.acquire(tenant, 10)).settle(10)
        await clock.move(333)
    wanted = 10 if what == "requests" else 25
    error = await refused(by_hand, tenant, wanted)
    assert ("for this API key" in error.message) == (owner == "key")
    await clock.move(error.retry_after_ms - 1)
    assert (await refused(by_hand, tenant, wanted)).retry_after_ms == 1
    await clock.move(1)
    await (await by_hand.acquire(tenant, wanted)).settle(wanted)


async def test_reset_is_when_all_of_it_is_there_again(by_hand: Limits, clock: HandClock) -> None:
    tenant = tenant_of(rpm=10, tpm=100)
    await (await by_hand.acquire(tenant, 10)).settle(10)
    await clock.move(5_000)
    hold = await by_hand.acquire(tenant, 20)
    assert hold.now is not None
    assert hold.now.tokens.reset_ms > WINDOW_MS - 250
    await hold.release()  # as if it had not been: the first is the last
    now = await by_hand.now(tenant)
    assert now.requests.reset_ms == now.tokens.reset_ms <= WINDOW_MS - 5_000
    await clock.move(now.tokens.reset_ms - 1)
    assert (await by_hand.now(tenant)).tokens.remaining == 90
    await clock.move(1)
    now = await by_hand.now(tenant)
    assert (now.requests.remaining, now.tokens.remaining) == (10, 100)
    assert (now.requests.reset_ms, now.tokens.reset_ms) == (0, 0)


async def test_the_longest_wait_is_told(by_hand: Limits, clock: HandClock) -> None:
    """Where several limits refuse, waiting for the first would end at the second."""
    tenant = tenant_of(rpm=2, tpm=100, key={"tpm": 60})
    await (await by_hand.acquire(tenant, 10)).settle(10)
    await clock.move(20_000)
    await (await by_hand.acquire(tenant, 50)).settle(50)
    error = await refused(by_hand, tenant, 45)
    assert "(60 for this API key)" in error.message
    await clock.move(error.retry_after_ms)
    await (await by_hand.acquire(tenant, 45)).settle(1)


async def test_a_clock_that_was_set_back_locks_nobody_out(
    by_hand: Limits, clock: HandClock
) -> None:
    tenant = tenant_of(rpm=1)
    await by_hand.admit(tenant)
    await clock.move(-3_600_000)
    await by_hand.admit(tenant)
    await refused(by_hand, tenant)


async def test_tokens_are_reserved_then_settled_to_what_was_used(limits: Limits) -> None:
    tenant = tenant_of(tpm=1000)
    hold = await limits.acquire(tenant, 900)
    error = await refused(limits, tenant, 200)
    assert error.type == "tokens"
    assert error.retry_after_ms <= WINDOW_MS
    await hold.settle(100)
    assert (await limits.now(tenant)).tokens.remaining == 900
    await (await limits.acquire(tenant, 850)).settle(850)


async def test_what_is_used_beyond_the_estimate_is_charged(
    by_hand: Limits, clock: HandClock
) -> None:
    """From when it is known on; what was reserved, from when it was."""
    tenant = tenant_of(tpm=1000)
    hold = await by_hand.acquire(tenant, 100)
    await clock.move(30_000)
    await hold.settle(1500)
    assert WINDOW_MS - 250 < (await refused(by_hand, tenant, 1)).retry_after_ms <= WINDOW_MS
    await clock.move(WINDOW_MS - 30_000)
    assert (await by_hand.now(tenant)).tokens.used == 1400
    await clock.move(30_000)
    assert (await by_hand.now(tenant)).tokens.used == 0


async def test_a_hold_that_outlived_its_minute_gives_nothing_back(
    by_hand: Limits, clock: HandClock
) -> None:
    tenant = tenant_of(rpm=10, tpm=1000)
    hold = await by_hand.acquire(tenant, 900)
    await clock.move(90_000)
    other = await by_hand.acquire(tenant, 900)
    await hold.release()
    now = await by_hand.now(tenant)
    assert (now.requests.used, now.tokens.used) == (1, 900), "what is there is the other's"
    await other.release()


async def test_a_keys_limits_hold_within_its_plans(limits: Limits) -> None:
    plan = tenant_of(rpm=10, tpm=1000, parallel=4)
    one = msgspec.structs.replace(plan, key_id="one", key_caps=Caps(requests_per_min=3))
    two = msgspec.structs.replace(
        plan, key_id="two", key_caps=Caps(tokens_per_min=500, parallel_requests=2)
    )
    for _ in range(3):
        hold = await limits.acquire(one, 10)
        await hold.settle(10)
    assert hold.headers["x-ratelimit-limit-requests"] == "3"
    assert hold.headers["x-ratelimit-remaining-requests"] == "0"
    assert hold.headers["x-ratelimit-limit-tokens"] == "1000"
    assert "(3 for this API key)" in (await refused(limits, one)).message
    held = [await limits.acquire(two, 100), await limits.acquire(two, 100)]
    assert "(2 for this API key)" in (await refused(limits, two)).message
    held += [await limits.acquire(plan, 1), await limits.acquire(plan, 1)]
    assert "(4 on plan 'p')" in (await refused(limits, plan)).message
    for each in held:
        await each.settle(150)
    now = await limits.now(two)
    assert now.key is not None
    assert (now.key.tokens.used, now.key.parallel, now.plan.tokens.used) == (300, 0, 630)
    with pytest.raises(BadRequestError, match="this API key allows only 500 tokens per minute"):
        await limits.acquire(two, 501)
    assert now.headers()["x-ratelimit-remaining-tokens"] == "200", "the tighter one's"
    assert now.headers()["x-ratelimit-remaining-requests"] == "3"


async def test_what_no_waiting_would_help_is_refused_for_good(limits: Limits) -> None:
    """More tokens than a minute has, more sequences than may run: nothing of it is counted."""
    tenant = tenant_of(rpm=5, tpm=100, parallel=4)
    for tokens, sequences, words in ((101, 1, "101 tokens"), (10, 5, "5 sequences")):
        with pytest.raises(BadRequestError, match=words) as caught:
            await limits.acquire(tenant, tokens, sequences)
        assert caught.value.code == "request_exceeds_limit"
        assert caught.value.headers["x-should-retry"] == "false"
    assert (await limits.now(tenant)).requests.used == 0


async def test_a_released_hold_cost_nothing(limits: Limits) -> None:
    tenant = tenant_of(rpm=5, tpm=100, parallel=1)
    async with await limits.acquire(tenant, 80):
        assert (await limits.now(tenant)).parallel == 1
    now = await limits.now(tenant)
    assert (now.requests.remaining, now.tokens.remaining, now.parallel) == (5, 100, 0)


async def test_what_was_admitted_is_counted_once(limits: Limits) -> None:
    tenant = tenant_of(rpm=5, parallel=1)
    admission = await limits.admit(tenant)
    hold = await limits.acquire(tenant, 1, requests=0, admission=admission)
    admission = await limits.admit(tenant)
    with pytest.raises(RateLimitedError):  # parallel: the second has its request back
        await limits.acquire(tenant, 1, requests=0, admission=admission)
    assert (await limits.now(tenant)).requests.remaining == 4
    await hold.release()
    assert (await limits.now(tenant)).requests.remaining == 5


async def test_no_limits_no_headers(limits: Limits) -> None:
    hold = await limits.acquire(tenant_of(), 10**9)
    assert hold.headers == {}
    await hold.settle(10**9)


async def test_zero_is_a_limit(limits: Limits) -> None:
    await refused(limits, tenant_of(rpm=0))
    await refused(limits, tenant_of(parallel=0))
    await refused(limits, tenant_of(tpm=0))


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
    assert (shown["key"], shown["local"]) == (None, False)


async def test_a_keys_own_limits_over_http(api: Api) -> None:
    await api.put_plan("wide", {"requests_per_min": 100, "tokens_per_min": 1000})
    tenant = await api.new_tenant(plan="wide", limits={"tokens_per_min": 80})
    ask = {"model": "fake-base", "prompt": "0123456789", "max_tokens": 5}
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=ask)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ratelimit-limit-tokens"] == "80"
    assert answer.headers["x-ratelimit-limit-requests"] == "100"
    used = answer.json()["usage"]["total_tokens"]
    shown = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert shown["tokens_per_min"]["limit"] == 1000
    assert shown["key"]["tokens_per_min"]["limit"] == 80
    assert shown["tokens_per_min"]["used"] == shown["key"]["tokens_per_min"]["used"] == used
    assert shown["key"]["requests_per_min"]["limit"] is None
    assert shown["key"]["parallel_requests"] == {"limit": None, "used": 0}
    del ask["max_tokens"]
    chat = {"model": "fake-base", "messages": [{"role": "user", "content": "0123456789" * 2}]}
    open_ended = await api.call(tenant.key, "POST", "/v1/chat/completions", json=chat)
    assert open_ended.status_code in (200, 429), "no more is reserved than the key allows"
