"""Budgets over parallel streams and several processes, without Redis, after it was emptied, and
against the books."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text

from api_harness import ADMIN_KEY, Api, TestTenant
from platform_fixtures import MakeApi
from shell import Listening, run
from tenora_platform.budgets.true_up import TrueUp
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.events import repository
from tenora_platform.ledger.expiry import CreditKeeper
from tenora_platform.operations.metrics import Metrics
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

PROMPT, OUTPUT = Decimal("0.10") / 10**6, Decimal("0.40") / 10**6  # the price list of migrations
COST = 4 * PROMPT + 10 * OUTPUT  # of one `ask`


async def ask(api: Api, tenant: TestTenant, **body: Any) -> int:
    wanted = {"model": "fake-base", "prompt": "abcd", "max_tokens": 10} | body
    answer = await api.call(tenant.key, "POST", "/v1/completions", json=wanted)
    return answer.status_code


async def level(api: Api, tenant: TestTenant, name: str = "plan_month") -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", "/v1/limits")
    assert answer.status_code == 200, answer.text
    return next(each for each in answer.json()["budgets"] if each["name"] == name)


async def billed(api: Api, tenant: TestTenant) -> Decimal:
    async with api.state.db.admin_session() as session:
        query = text(
            "select sum(amount) from usage_events"
            " where tenant_no = (select no from tenants where id = :t)"
        )
        return Decimal(await session.scalar(query, {"t": tenant.id}) or 0)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 30
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def until_billed(api: Api, tenant: TestTenant, amount: Decimal) -> None:
    async def are_billed() -> bool:
        return await billed(api, tenant) == amount

    await until(are_billed)


async def until_asked(number: int, *apis: Api) -> None:
    """So many requests are in the engines."""

    async def are_asked() -> bool:
        return sum(len(api.engine.requests) for api in apis) >= number

    await until(are_asked)


@asynccontextmanager
async def two_processes(make_api: MakeApi) -> AsyncIterator[tuple[Api, Api]]:
    async with make_api() as one, make_api() as two:
        yield one, two


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_requests_do_not_pass_a_cap(make_api: MakeApi, stream: bool) -> None:
    """96 at once over two processes, and a budget for 37 of them: 37 + 0 are served."""
    async with two_processes(make_api) as (one, two):
        cap = 37 * COST + COST / 2
        await one.put_plan("crowd", {"budget_day": f"{cap:f}"})
        tenant = await one.new_tenant("crowd", "crowd")
        gate = asyncio.Event()
        one.engine.gate = two.engine.gate = gate
        asked = [asyncio.create_task(ask(api, tenant, stream=stream)) for api in [one, two] * 48]

        async def others_are_refused() -> bool:
            return sum(task.done() for task in asked) == 96 - 37

        await until_asked(37, one, two)
        await until(others_are_refused)
        shown = await level(two, tenant, "plan_day")
        assert Decimal(shown["held"]) == 37 * COST
        gate.set()
        statuses = await asyncio.gather(*asked)
        assert sorted(statuses) == [200] * 37 + [429] * 59
        await until_billed(one, tenant, 37 * COST)
        shown = await level(one, tenant, "plan_day")
        assert Decimal(shown["spent"]) == 37 * COST
        assert Decimal(shown["held"]) == 0


async def test_overshoot_is_the_holds_own_error(make_api: MakeApi) -> None:
    """Answers that are longer than the tenant's history let expect: each request in flight may take
    more than it holds, and nothing passes after."""
    async with make_api() as api:
        await api.put_plan("longer", {"budget": "0.002"})
        tenant = await api.new_tenant("longer", "longer")
        api.engine.answer = lambda request, index: "x" * 4
        for _ in range(20):
            assert await ask(api, tenant, max_tokens=400) == 200
        spent = Decimal((await level(api, tenant))["spent"])
        assert spent == 20 * (4 * PROMPT + 5 * OUTPUT)
        gate = api.engine.gate = asyncio.Event()
        api.engine.answer = lambda request, index: "x" * 500
        asked = [asyncio.create_task(ask(api, tenant, max_tokens=400)) for _ in range(10)]
        await until_asked(30, api)
        held = Decimal((await level(api, tenant))["held"])
        assert held == 10 * (4 * PROMPT + 5 * OUTPUT)  # by its history, not by max_tokens
        gate.set()
        assert await asyncio.gather(*asked) == [200] * 10
        actual = 10 * (4 * PROMPT + 400 * OUTPUT)
        after = Decimal((await level(api, tenant))["spent"])
        assert after == spent + actual
        while await ask(api, tenant, max_tokens=400) == 200:
            pass
        end = Decimal((await level(api, tenant))["spent"])
        assert end <= Decimal("0.002") + 400 * OUTPUT


async def test_until_there_is_a_history_256_tokens_are_held(make_api: MakeApi) -> None:
    async with make_api() as api:
        await api.put_plan("fresh", {"budget": "1"})
        tenant = await api.new_tenant("fresh", "fresh")
        gate = api.engine.gate = asyncio.Event()
        asked = [
            asyncio.create_task(ask(api, tenant, max_tokens=400)),
            asyncio.create_task(ask(api, tenant, max_tokens=30, n=2)),
        ]
        await until_asked(2, api)
        held = Decimal((await level(api, tenant))["held"])
        assert held == (4 * PROMPT + 256 * OUTPUT) + (4 * PROMPT + 2 * 30 * OUTPUT)
        gate.set()
        assert await asyncio.gather(*asked) == [200, 200]


async def test_without_redis_budgets_go_on_by_the_books(
    make_api: MakeApi, valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_platform.redis_client.ANSWER_S", 0.5)
    more = {"redis_url": valkey.url, "limits_fallback_s": 60.0, "lease_s": 1.5}
    async with make_api(**more) as api:
        await api.put_plan("alone", {"budget": f"{5 * COST:f}"})
        tenant = await api.new_tenant("alone", "alone")
        for _ in range(2):
            assert await ask(api, tenant) == 200
        await until_billed(api, tenant, 2 * COST)
        os.kill(int((valkey.folder / "valkey.pid").read_text()), signal.SIGKILL)
        statuses = [await ask(api, tenant) for _ in range(6)]
        # What was settled in the last seconds may be in the books and in the queue: never too many.
        assert statuses.count(200) in (2, 3)
        assert set(statuses) == {200, 429}
        served = 2 + statuses.count(200)
        valkey.stop()
        valkey.start()  # it comes back empty
        await until_billed(api, tenant, served * COST)

        async def is_settled() -> bool:
            shown = (await api.call(tenant.key, "GET", "/v1/limits")).json()
            spent, held = (Decimal(shown["budgets"][0][each]) for each in ("spent", "held"))
            return not shown["local"] and spent == served * COST and held == 0

        await until(is_settled)


async def test_a_renewal_does_not_bring_back_what_is_counted(make_api: MakeApi) -> None:
    """The books tell of a sequence before its API process knows that it has ended."""
    async with make_api() as api:
        await api.put_plan("renewed", {"budget": "1"})
        tenant = await api.new_tenant("renewed", "renewed")
        gate = api.engine.gate = asyncio.Event()
        asked = asyncio.create_task(ask(api, tenant))
        await until_asked(1, api)
        request = api.engine.requests[0]
        record = usage_record(
            f"{request.request_id}:0",
            tenant.id,
            context=request.context,
            prompt_tokens=4,
            cached_tokens=0,
            output_tokens=10,
            finished_s=time.time(),
        )
        budgets = api.state.budgets
        await UsageSink(api.engine, api.state.db, told=budgets.book).store([record])
        await budgets._renew()
        for _ in range(2):
            shown = await level(api, tenant)
            assert Decimal(shown["spent"]) == COST
            assert Decimal(shown["held"]) == 0
            gate.set()
            assert await asked == 200


async def test_the_true_up_follows_the_books(api: Api) -> None:
    """A counter that is wrong in either direction is put right, counted and named."""
    await api.put_plan("true", {"budget": "1"})
    tenant = await api.new_tenant("true", "true")
    for _ in range(3):
        assert await ask(api, tenant) == 200
    await until_billed(api, tenant, 3 * COST)
    store = api.state.budgets.store
    metrics = Metrics()
    true_up = TrueUp(api.state.db, store, metrics, api.state.seal)
    assert await true_up.compare(tenant.id) == []
    account = f"m:{datetime.now(UTC):%Y-%m}:USD"
    for off in (-1000, 5):
        key = f"tenora:budgets:{{{tenant.id}}}:spent"
        await api.state.redis.hincrby(key, account, off)
        wrong = await true_up.compare(tenant.id)
        assert [(each.account, each.before - each.after) for each in wrong] == [(account, off)]
        assert Decimal((await level(api, tenant))["spent"]) == 3 * COST
    told = metrics.text().decode()
    assert 'tenora_budget_corrections_total{way="raised"} 1.0' in told
    assert 'tenora_budget_corrections_total{way="lowered"} 1.0' in told
    named = (await api.admin("GET", "/admin/v1/reconciliation")).json()["budget_corrections"]
    mine = [each for each in named if each["tenant_id"] == tenant.id]
    assert [Decimal(each["books"]) for each in mine] == [3 * COST, 3 * COST]


async def test_an_emptied_redis_knows_again_what_was_spent(api: Api) -> None:
    await api.put_plan("emptied", {"budget": f"{3 * COST:f}"})
    tenant = await api.new_tenant("emptied", "emptied")
    for _ in range(2):
        assert await ask(api, tenant) == 200
    await until_billed(api, tenant, 2 * COST)
    keys = [key async for key in api.state.redis.scan_iter(f"tenora:budgets*{tenant.id}*")]
    assert await api.state.redis.delete(*keys) == len(keys) > 0
    assert [await ask(api, tenant) for _ in range(3)] == [200, 429, 429]
    assert Decimal((await level(api, tenant))["spent"]) == 3 * COST


async def test_what_is_told_last_is_kept_before_the_server_ends(
    make_api: MakeApi, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, kept = repository.add, []

    async def slowly(*args: Any, **more: Any) -> None:
        await asyncio.sleep(0.2)
        await add(*args, **more)
        kept.append(more["type"])

    await api.put_plan("last", {"budget": "0"})
    tenant = await api.new_tenant("last", "last")
    monkeypatch.setattr(repository, "add", slowly)
    async with make_api() as ending:
        assert await ask(ending, tenant) == 429
    assert kept == ["budget.hard"]


async def test_what_expires_first_is_spent_first(api: Api) -> None:
    """Of a grant that has expired counts what had been spent by then; the rest lapses, once."""
    tenant = await api.new_tenant("expiring")
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    body = {"amount": f"{3 * COST:f}", "expires_at": soon}
    expiring = (await api.admin("POST", path, json=body)).json()
    await api.admin("POST", path, json={"amount": f"{2 * COST:f}"})
    assert await ask(api, tenant) == 200
    await until_billed(api, tenant, COST)
    async with api.state.db.admin_session() as session:
        change = text("update credit_grants set expires_at = now() where id = :i")
        await session.execute(change, {"i": expiring["id"]})
    await TrueUp(api.state.db, api.state.budgets.store, Metrics(), api.state.seal).compare(
        tenant.id
    )
    credit = (await api.call(tenant.key, "GET", "/v1/limits")).json()["credit"]
    assert Decimal(credit["granted"]) == 3 * COST  # one of the first, and the second
    assert Decimal(credit["balance"]) == 2 * COST
    await CreditKeeper(api.state.db, api.state.ledger).run_once()
    grants = (await api.admin("GET", path)).json()["data"]
    assert [each["lapsed"] and Decimal(each["lapsed"]) for each in grants] == [None, 2 * COST]
    assert [await ask(api, tenant) for _ in range(3)] == [200, 200, 429]


def test_credit_from_a_shell(listening: Listening) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    made = json.loads(run("tenant", "create", "buyer", "--json", *where, **admin)[1])
    code, shown = run("tenant", "credit", made["id"], "25.50", "--note", "hello", *where, **admin)
    assert (code, "25.50" in shown, "hello" in shown) == (0, True, True), shown
    code, shown = run("tenant", "credit", made["id"], *where, **admin)
    assert (code, shown.count("credit_")) == (0, 1), shown
    code, shown = run("tenant", "credit", made["id"], "much", *where, **admin)
    assert (code, "amount" in shown) == (1, True)
