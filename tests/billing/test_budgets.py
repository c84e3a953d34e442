"""Budgets through the API: what is held, spent, told and refused, for plans, keys and credit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest

from api_harness import Api, TestTenant
from served_api import until
from tenora_engine.request import GenerationRequest
from tenora_platform.billing.price_lists import Prices

PROMPT, OUTPUT = Decimal("0.10") / 10**6, Decimal("0.40") / 10**6  # the price list of migrations


async def ask(api: Api, tenant: TestTenant, **body: Any) -> httpx.Response:
    wanted = {"model": "fake-base", "prompt": "abcd", "max_tokens": 10} | body
    return await api.call(tenant.key, "POST", "/v1/completions", json=wanted)


async def limits(api: Api, tenant: TestTenant) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", "/v1/limits")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def budgets(api: Api, tenant: TestTenant) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (await limits(api, tenant))["budgets"]}


def long_answer(request: GenerationRequest, index: int) -> str:
    return "x" * 400


async def test_what_is_spent_is_what_is_billed(api: Api) -> None:
    await api.put_plan("month", {"budget": "1", "budget_day": "0.5"})
    tenant = await api.new_tenant("spends", "month")
    for _ in range(3):
        answer = await ask(api, tenant)
        assert answer.status_code == 200, answer.text
        assert "x-tenora-budget" not in answer.headers
    shown = await budgets(api, tenant)
    assert set(shown) == {"plan_day", "plan_month"}
    cost = 3 * (4 * PROMPT + 10 * OUTPUT)
    for each in shown.values():
        assert Decimal(each["spent"]) == cost
        assert Decimal(each["held"]) == 0
        assert each["state"] == "ok"
    now = datetime.now(UTC)
    assert shown["plan_day"]["resets_at"][:10] == f"{now + timedelta(days=1):%Y-%m-%d}"
    async with asyncio.timeout(10):
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/costs")).json()
            billed = sum(
                Decimal(result["amount"]) for day in page["data"] for result in day["results"]
            )
            if billed == cost:
                break
            await asyncio.sleep(0.02)
    assert Decimal((await budgets(api, tenant))["plan_month"]["spent"]) == cost


async def test_a_used_up_budget_refuses_and_says_which_and_until_when(api: Api) -> None:
    await api.put_plan("tiny", {"budget_day": "0.00001"})
    tenant = await api.new_tenant("tiny", "tiny")
    api.engine.answer = long_answer
    refused = None
    for _ in range(10):
        answer = await ask(api, tenant, max_tokens=20)
        if answer.status_code != 200:
            refused = answer
            break
    assert refused is not None
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert error["code"] == error["type"] == "insufficient_quota"
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    assert "retry-after-ms" not in refused.headers
    assert error["budget"] == "plan_day"
    assert "daily budget" in error["message"]
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT00:00:00Z}"
    assert error["resets_at"] == tomorrow
    assert tomorrow in error["message"]
    shown = (await budgets(api, tenant))["plan_day"]
    assert Decimal(shown["spent"]) <= Decimal("0.00001")
    assert Decimal(shown["held"]) == 0


async def test_a_budget_of_0_refuses_all(api: Api) -> None:
    await api.put_plan("nothing", {"budget": "0"})
    tenant = await api.new_tenant("nothing", "nothing")
    before = len(api.engine.requests)
    assert (await ask(api, tenant)).status_code == 429
    assert len(api.engine.requests) == before
    assert (await budgets(api, tenant))["plan_month"]["state"] == "hard"


async def test_a_key_has_a_budget_of_its_own(api: Api) -> None:
    await api.put_plan("roomy", {"budget": "1"})
    tenant = await api.new_tenant("keys", "roomy", limits={"budget_day": "0.000009"})
    made = await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={"name": "2"})
    other = TestTenant(tenant.id, made.json()["key"], made.json()["id"])
    assert (await ask(api, tenant)).status_code == 200
    assert (await ask(api, tenant)).status_code == 200
    refused = await ask(api, tenant)
    assert refused.json()["error"]["budget"] == "key_day"
    assert (await ask(api, other)).status_code == 200
    assert set(await budgets(api, other)) == {"plan_month"}
    shown = await budgets(api, tenant)
    assert Decimal(shown["key_day"]["spent"]) == 2 * (4 * PROMPT + 10 * OUTPUT)
    assert Decimal(shown["plan_month"]["spent"]) == 3 * (4 * PROMPT + 10 * OUTPUT)


async def test_keys_that_a_key_creates_spend_its_budget(api: Api) -> None:
    """By what API processes told, by the books, and by what either says when both are lost."""
    await api.put_plan("roomy", {"budget": "1"})
    tenant = await api.new_tenant("family", "roomy", limits={"budget_day": "0.000014"})
    keys = [tenant]
    for _ in range(2):
        made = (await api.call(keys[-1].key, "POST", "/v1/api_keys", json={})).json()
        keys.append(TestTenant(tenant.id, made["key"], made["id"]))
    for each in (keys[1], keys[2], keys[2]):
        assert (await ask(api, each)).status_code == 200
    for each in keys:
        assert (await ask(api, each)).json()["error"]["budget"] == "key_day"
    cost = 4 * PROMPT + 10 * OUTPUT
    async with asyncio.timeout(10):
        while True:
            if (await billed(api, tenant)) == 3 * cost:
                break
            await asyncio.sleep(0.02)
    for forget in (False, True):
        if forget:
            await api.state.redis.delete(*await api.state.redis.keys("tenora:budgets:*"))
        shown = [each for each in (await limits(api, keys[2]))["budgets"] if "key" in each["name"]]
        assert [Decimal(each["spent"]) for each in shown] == [2 * cost, 3 * cost, 3 * cost]
        accounts = await api.state.budgets.store.accounts(tenant.id)
        now = datetime.now(UTC)
        wrong = await api.state.budgets.seeder.seed(tenant.id, accounts, now, mend=True)
        assert wrong == [], "the books say the same"


async def billed(api: Api, tenant: TestTenant) -> Decimal:
    page = (await api.call(tenant.key, "GET", "/v1/costs")).json()
    return sum(
        (Decimal(result["amount"]) for day in page["data"] for result in day["results"]), Decimal(0)
    )


async def test_a_soft_cap_tells_once_and_degrades(api: Api) -> None:
    caps = {"budget": "0.000088", "budget_soft": 0.06, "budget_action": "degrade"}
    await api.put_plan("soft", caps, sla_class="priority")
    tenant = await api.new_tenant("soft", "soft")
    first = await ask(api, tenant)
    assert first.headers["x-tenora-tier"] == "priority"
    second = await ask(api, tenant)
    assert "x-tenora-budget" not in first.headers
    third = await ask(api, tenant)
    assert second.status_code == third.status_code == 200
    assert third.headers["x-tenora-tier"] == "flex"
    assert third.json()["service_tier"] == "flex"
    assert api.engine.requests[-1].tenant.tier == "flex"
    left = Decimal("0.000088") - 2 * (4 * PROMPT + 10 * OUTPUT)
    told = third.headers["x-tenora-budget"]
    assert told.startswith('soft;budget=plan_month;remaining="')
    assert told.endswith(";currency=USD")
    assert Decimal(told.partition('remaining="')[2].partition('"')[0]) == left
    events = await events_of(api, tenant, 1)
    assert events[0]["type"] == "budget.soft"
    assert events[0]["data"]["budget"] == "plan_month"
    assert Decimal(events[0]["data"]["cap"]) == Decimal("0.000088")
    assert events[0]["data"]["currency"] == "USD"
    seen = await api.admin("GET", f"/admin/v1/tenants/{tenant.id}/events?type=budget.soft")
    assert [each["id"] for each in seen.json()["data"]] == [events[0]["id"]]
    while (await ask(api, tenant)).status_code == 200:
        pass
    events = await events_of(api, tenant, 2)
    assert [each["type"] for each in events] == ["budget.hard", "budget.soft"]


async def test_what_is_only_held_uses_no_budget_up(api: Api) -> None:
    """A request that is refused by what others hold, or by what it may cost itself, is told so; the
    budget's own event comes when it is spent."""
    await api.put_plan("held", {"budget": "0.0000088", "budget_soft": 0.9})  # of two requests
    tenant = await api.new_tenant("held", "held")
    assert (await ask(api, tenant, max_tokens=400)).status_code == 429
    before = len(api.engine.requests)
    gate = api.engine.gate = asyncio.Event()
    running = [asyncio.create_task(ask(api, tenant)) for _ in range(2)]
    await until(lambda: len(api.engine.requests) == before + 2)
    refused = await ask(api, tenant)
    assert "does not cover this request: 0 USD is spent" in refused.text
    await api.state.budgets.finish()
    assert await events_of(api, tenant, 0) == []
    gate.set()
    assert [(await each).status_code for each in running] == [200, 200]
    hard, soft = await events_of(api, tenant, 2)
    assert {hard["type"], soft["type"]} == {"budget.hard", "budget.soft"}
    for each in (hard, soft):
        assert Decimal(each["data"]["spent"]) == Decimal(each["data"]["cap"])


async def test_a_cap_that_is_rewritten_is_told_once_until_more_is_spent(api: Api) -> None:
    cost = 4 * PROMPT + 10 * OUTPUT
    await api.put_plan("rewritten", {"budget": f"{2 * cost:f}"})
    tenant = await api.new_tenant("rewritten", "rewritten")
    for _ in range(2):
        assert (await ask(api, tenant)).status_code == 200
    await events_of(api, tenant, 1)
    for part in range(10, 15):
        await api.put_plan("rewritten", {"budget": f"{2 * cost * part / 20:f}"})
        assert (await ask(api, tenant)).status_code == 429
    await api.state.budgets.finish()
    await events_of(api, tenant, 1)
    await api.put_plan("rewritten", {"budget": f"{3 * cost:f}"})
    assert (await ask(api, tenant)).status_code == 200
    await events_of(api, tenant, 2)


async def events_of(api: Api, tenant: TestTenant, number: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(10):
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/events")).json()
            data = [each for each in page["data"] if each["type"].startswith("budget.")]
            if len(data) >= number:
                assert len(data) == number
                return data
            await asyncio.sleep(0.02)


async def test_an_event_is_told_when_the_last_request_reaches_the_cap(api: Api) -> None:
    """Nobody asks again: it is told all the same."""
    await api.put_plan("last", {"budget": "0.000006", "budget_soft": 0.5})
    tenant = await api.new_tenant("last", "last")
    assert (await ask(api, tenant)).status_code == 200
    assert [each["type"] for each in await events_of(api, tenant, 1)] == ["budget.soft"]


async def test_prepaid_credit_is_spent_and_shown(api: Api) -> None:
    tenant = await api.new_tenant("prepaid")
    assert (await limits(api, tenant))["credit"] is None
    cost = 4 * PROMPT + 10 * OUTPUT
    assert (await ask(api, tenant)).status_code == 200  # before the first grant: not of the credit
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    made = await api.admin("POST", path, json={"amount": "0.000010", "note": "welcome"})
    assert made.status_code == 201, made.text
    assert (await ask(api, tenant)).status_code == 200
    credit = (await limits(api, tenant))["credit"]
    assert Decimal(credit["balance"]) == Decimal("0.000010") - cost
    assert (await ask(api, tenant)).status_code == 200
    refused = await ask(api, tenant)
    assert refused.status_code == 429
    assert refused.json()["error"]["budget"] == "credit"
    assert "resets_at" not in refused.json()["error"]
    again = await api.admin("POST", path, json={"amount": "0.00001"})
    assert again.status_code == 201
    assert (await ask(api, tenant)).status_code == 200
    credit = (await limits(api, tenant))["credit"]
    assert Decimal(credit["balance"]) == Decimal("0.000020") - 3 * cost
    listed = (await api.admin("GET", path)).json()["data"]
    assert [each["id"] for each in listed] == [again.json()["id"], made.json()["id"]]
    logged = (await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}")).json()
    assert "credit.grant" in {each["action"] for each in logged["data"]}
    off = await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"prepaid": False})
    assert off.json()["prepaid"] is False
    assert (await limits(api, tenant))["credit"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "amount"),
        ({"amount": "0"}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({"amount": "1e400"}, "amount"),
        ({"amount": "0.0000000000001"}, "amount"),
        ({"amount": "1", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"amount": "1", "note": "a\u0000"}, "note"),
    ],
)
async def test_a_bad_grant(api: Api, body: dict[str, Any], param: str) -> None:
    tenant = await api.new_tenant("bad grant")
    answer = await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/credits", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    unknown = await api.admin("POST", "/admin/v1/tenants/nobody/credits", json={"amount": "1"})
    assert unknown.status_code == 404
    assert (await api.admin("GET", "/admin/v1/tenants/nobody/credits")).status_code == 404


async def test_without_a_price_only_a_budget_fails_closed(api: Api) -> None:
    """Of a model that no list covers: a tenant without a budget is served as ever."""
    await api.put_plan("priced", {"budget": "1"})
    strict, free = await api.new_tenant("strict", "priced"), await api.new_tenant("free")
    book = api.state.budgets._prices
    lists = await book.lists()
    book._lists = Prices()
    try:
        refused = await ask(api, strict)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "price_missing"
        assert (await ask(api, free)).status_code == 200
    finally:
        book._lists = lists


async def test_without_a_budget_nothing_is_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """No round trip to Redis, and no price."""
    tenant = await api.new_tenant("unbound")

    async def refused(*values: Any, **more: Any) -> None:
        raise AssertionError("asked all the same")

    store = api.state.budgets.store
    for name in ("acquire", "spent", "settle", "seed", "open"):
        monkeypatch.setattr(store, name, refused)
    monkeypatch.setattr(api.state.budgets._prices, "lists", refused)
    assert (await ask(api, tenant)).status_code == 200
    monkeypatch.undo()
    assert (await limits(api, tenant))["budgets"] == []


async def test_a_budget_that_is_new_knows_what_was_spent_before(api: Api) -> None:
    await api.put_plan("later", {})
    tenant = await api.new_tenant("later", "later")
    for _ in range(2):
        assert (await ask(api, tenant)).status_code == 200
    cost = 4 * PROMPT + 10 * OUTPUT
    async with asyncio.timeout(10):
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/costs")).json()
            if sum(Decimal(each["amount"]) for day in page["data"] for each in day["results"]) == (
                2 * cost
            ):
                break
            await asyncio.sleep(0.02)
    await api.put_plan("later", {"budget": f"{3 * cost:f}"})
    assert Decimal((await budgets(api, tenant))["plan_month"]["spent"]) == 2 * cost
    assert (await ask(api, tenant)).status_code == 200
    assert (await ask(api, tenant)).status_code == 429
