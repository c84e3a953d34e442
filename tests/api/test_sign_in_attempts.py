"""Attempts to sign in are limited by address and by key, over all processes, and nobody else's keys
are forgotten for them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisAway
from sqlalchemy import func, select, update

from api_harness import ADMIN_KEY, Api
from people import session_of_key, signed_in
from platform_fixtures import MakeApi
from tenora_platform.errors import RateLimitedError, UnauthorizedError
from tenora_platform.keys import make_key
from tenora_platform.people import attempts
from tenora_platform.people.attempts import (
    BEGUN_MAX,
    CHECKED_AT_ONCE,
    FAILED_MAX,
    WRONG_KEYS_MAX,
    SignInAttempts,
    network_of,
)
from tenora_platform.people.sessions import COOKIE, OPEN_MAX
from tenora_platform.people.tables import SessionRow

WRONG = "tn_aaaaaaaa_" + "b" * 32


@pytest.fixture(autouse=True)
async def nobody_has_tried(api: Api) -> None:
    async for key in api.state.redis.scan_iter("tenora:sign_in:*"):
        await api.state.redis.delete(key)


async def test_wrong_keys_are_refused_after_some(make_api: MakeApi) -> None:
    async with make_api() as first, make_api() as second:  # as two processes
        answers = await asyncio.gather(
            *(
                (first, second)[i % 2].http.post("/auth/session", json={"key": WRONG})
                for i in range(FAILED_MAX + 20)
            )
        )
        codes = [(a.status_code, a.json()["error"]["code"]) for a in answers]
        assert codes.count((401, "invalid_api_key")) == FAILED_MAX
        assert codes.count((429, "too_many_sign_ins")) == 20
        refused = next(a for a in answers if a.status_code == 429)
        assert 1 <= int(refused.headers["retry-after"]) <= attempts.WINDOW_S
        metrics = (await first.admin("GET", "/metrics")).text
        assert 'tenora_sign_in_failures_total{reason="invalid_api_key"}' in metrics
        looked = await second.http.post("/auth/invitations/look", json={"token": "x" * 43})
        assert looked.status_code == 429


async def test_right_keys_do_not_count_as_failures(api: Api) -> None:
    for _ in range(FAILED_MAX + 2):
        await session_of_key(api, ADMIN_KEY)


async def test_right_sign_ins_at_once_wait_for_each_other(api: Api) -> None:
    body = {"key": ADMIN_KEY}
    answers = await asyncio.gather(
        *(api.http.post("/auth/session", json=body) for _ in range(FAILED_MAX + 15))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert api.state.attempts._places == {}  # nothing is left of them


async def test_attempts_of_an_address_are_checked_a_few_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many guesses beyond the limit are looked at, at most."""
    limits: SignInAttempts = api.state.attempts
    checked = 0

    async def guess() -> None:
        nonlocal checked
        async with limits.attempt("192.0.2.1"):
            checked += 1
            await asyncio.sleep(0)
            raise UnauthorizedError("wrong")

    said = await asyncio.gather(*(guess() for _ in range(200)), return_exceptions=True)
    assert FAILED_MAX <= checked <= FAILED_MAX + CHECKED_AT_ONCE
    assert sum(type(each) is UnauthorizedError for each in said) == FAILED_MAX


@pytest.mark.parametrize(
    "wrong",
    [WRONG, "anything", make_key().text, make_key("tna").text],
    ids=["no key of ours", "a word", "a tenant's", "an operator's"],
)
async def test_wrong_bearer_keys_are_limited_and_right_ones_are_not(
    make_api: MakeApi, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one address, which may be a proxy's, over all processes and routes."""
    monkeypatch.setattr(attempts, "WRONG_KEYS_MAX", WRONG_KEYS_MAX)  # as it is, not in tests
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(attempts._log, "warning", lambda event, **more: lines.append(more))
    paths = ["/v1/usage", "/admin/v1/tenants", "/v1/me", "/metrics"]
    async with make_api() as first, make_api() as second:  # as two processes
        tenant = await first.new_tenant()
        answers = [
            await (first, second)[i % 2].call(wrong, "GET", paths[i % len(paths)])
            for i in range(WRONG_KEYS_MAX + 8)
        ]
        assert [a.status_code for a in answers] == [401] * WRONG_KEYS_MAX + [429] * 8
        refused = answers[-1]
        assert refused.json()["error"]["code"] == "too_many_wrong_keys"
        assert 1 <= int(refused.headers["retry-after"]) <= attempts.WINDOW_S
        assert [each["requests"] for each in lines] == [1, WRONG_KEYS_MAX + 1]
        for api in (first, second):
            assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 200
            assert (await api.admin("GET", "/admin/v1/tenants")).status_code == 200
        assert (await session_of_key(second, tenant.key)).token  # signing in is counted apart
        assert "tenora_wrong_keys_total" in (await first.admin("GET", "/metrics")).text


async def test_wrong_sessions_are_limited_and_right_ones_are_not(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every kind of route that takes one. A cookie of another length is none, too."""
    monkeypatch.setattr(attempts, "WRONG_KEYS_MAX", WRONG_KEYS_MAX)  # as it is, not in tests
    paths = ["/v1/usage", "/admin/v1/tenants", "/v1/me", "/auth/session"]
    async with make_api() as api:
        right = await session_of_key(api, (await api.new_tenant()).key)
        wrong = ["x" * len(right.token), "y" * len(right.token), "short"]
        told = []
        for number in range(WRONG_KEYS_MAX + 8):
            cookie = f"{COOKIE}={wrong[number % len(wrong)]}"
            path = paths[number % len(paths)]
            told.append((await api.http.get(path, headers={"cookie": cookie})).status_code)
        assert told == [401] * WRONG_KEYS_MAX + [429] * 8
        cookie = f"{COOKIE}={right.token}"
        assert (await api.http.get("/v1/me", headers={"cookie": cookie})).status_code == 200


async def test_a_right_key_costs_nothing_to_count(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted(**_: object) -> None:
        raise AssertionError("a right key was counted")

    tenant = await api.new_tenant()
    monkeypatch.setattr(api.state.attempts, "_take", counted)
    assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 200
    assert (await api.admin("GET", "/admin/v1/tenants")).status_code == 200


async def test_a_key_begins_so_many_sessions(api: Api) -> None:
    limits = api.state.attempts
    for _ in range(BEGUN_MAX):
        await limits.begin_session("key_a")
    with pytest.raises(RateLimitedError):
        await limits.begin_session("key_a")
    await limits.begin_session("key_b")


async def test_the_oldest_sessions_end(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["usage"])
    first = await session_of_key(api, tenant.key)
    for _ in range(OPEN_MAX):
        last = await session_of_key(api, tenant.key)
    assert (await first.call("GET", "/v1/usage")).status_code == 401
    assert (await last.call("GET", "/v1/usage")).status_code == 200
    async with api.state.db.admin_session() as session:
        of_key = SessionRow.api_key_id == tenant.key_id
        count = await session.scalar(select(func.count()).select_from(SessionRow).where(of_key))
    assert count == OPEN_MAX


async def test_a_sign_in_forgets_nobody_elses_key(api: Api) -> None:
    await api.new_tenant()
    before = await api.state.redis.get("tenora:auth:epoch")
    mine = await session_of_key(api, ADMIN_KEY)
    await mine.call("POST", "/auth/logout")
    assert await api.state.redis.get("tenora:auth:epoch") == before


async def test_an_ended_session_is_forgotten_everywhere(make_api: MakeApi) -> None:
    async with make_api() as first, make_api() as second:
        tenant = await first.new_tenant(scopes=["usage"])
        mine = await session_of_key(first, tenant.key)
        there = await second.http.get("/v1/usage", headers={"cookie": f"{COOKIE}={mine.token}"})
        assert there.status_code == 200
        assert (await mine.call("POST", "/auth/logout")).status_code == 200
        there = await second.http.get("/v1/usage", headers={"cookie": f"{COOKIE}={mine.token}"})
        assert there.status_code == 401


async def test_without_redis_a_process_counts_for_itself(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: SignInAttempts = api.state.attempts

    async def gone(**_: object) -> None:
        raise RedisAway

    monkeypatch.setattr(limits, "_take", gone)
    for _ in range(FAILED_MAX):
        with pytest.raises(UnauthorizedError):
            async with limits.attempt("192.0.2.1"):
                raise UnauthorizedError("wrong")
    with pytest.raises(RateLimitedError):
        async with limits.attempt("192.0.2.1"):
            pass
    async with limits.attempt("192.0.2.2"):
        pass


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a unix socket", "unknown"),
        (None, "unknown"),
    ],
)
def test_an_address_counts_with_its_network(address: str | None, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    "headers",
    [{"x-tenora-unattended": "1"}, {"accept": "text/event-stream"}],
)
async def test_an_unattended_page_does_not_keep_its_session(
    api: Api, headers: dict[str, str]
) -> None:
    tenant = await api.new_tenant()
    mine = await signed_in(api, (tenant.id, "owner"))
    ago = datetime.now(UTC) - timedelta(hours=2)
    async with api.state.db.admin_session() as session:
        mine_alone = SessionRow.person_id == mine.id
        await session.execute(update(SessionRow).where(mine_alone).values(last_used_at=ago))
    cookie = {"cookie": f"{COOKIE}={mine.token}"}

    async def last_use() -> datetime:
        async with api.state.db.admin_session() as session:
            return (await session.scalars(select(SessionRow.last_used_at).where(mine_alone))).one()

    for path in ("/auth/session", "/v1/usage", "/v1/me"):
        assert (await api.http.get(path, headers=cookie | headers)).status_code == 200
        assert await last_use() == ago, path
    assert (await api.http.get("/v1/usage", headers=cookie)).status_code == 200
    assert await last_use() > ago
