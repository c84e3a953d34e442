"""The budget of a whole account: its alerts, each told once over several workers, restarts and an
emptied Redis, in the budget's currency; a hard one refuses; and who may see and set it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from api_harness import Api, TestTenant
from platform_fixtures import MakeApi
from price_lists import BASE, add_prices, record_of
from tenora_engine.events import UsageRecord
from tenora_platform.budgets.accounts import budgets_of, month_start
from tenora_platform.budgets.alerts import AccountAlerts
from tenora_platform.budgets.tables import AccountBudgetRow
from tenora_platform.usage.sink import UsageSink

PROMPT, OUTPUT = Decimal("0.10") / 10**6, Decimal("0.40") / 10**6  # the price list of migrations
COST = 4 * PROMPT + 10 * OUTPUT  # of one `ask`


async def ask(api: Api, tenant: TestTenant, **body: Any) -> httpx.Response:
    wanted = {"model": "fake-base", "prompt": "abcd", "max_tokens": 10} | body
    return await api.call(tenant.key, "POST", "/v1/completions", json=wanted)


async def put(api: Api, tenant: TestTenant, **body: Any) -> httpx.Response:
    return await api.call(tenant.key, "PUT", "/v1/budget", json=body)


async def budget(api: Api, tenant: TestTenant) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", "/v1/budget")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def told(api: Api, tenant: TestTenant) -> list[dict[str, Any]]:
    """The data of its alerts, the oldest first."""
    page = await api.call(tenant.key, "GET", "/v1/events?type=budget.alert&limit=100")
    return [each["data"] for each in reversed(page.json()["data"])]


async def thresholds(api: Api, tenant: TestTenant) -> list[int]:
    return [each["threshold"] for each in await told(api, tenant)]


async def use(api: Api, *records: UsageRecord) -> None:
    """Book them, and hear of it as a worker does."""
    await UsageSink(api.state.engine, api.state.db, told=api.state.budgets.book).store(records)


def of(tenant: TestTenant, tokens: int, at: datetime | None = None, **more: Any) -> UsageRecord:
    """So many million tokens of output, at 0.40 USD each unless another list holds."""
    at = at or datetime.now(UTC)
    return record_of(tenant, at, "fake-base", output_tokens=tokens * 10**6, **more)


async def test_each_threshold_is_told_once_when_it_is_reached(api: Api) -> None:
    tenant = await api.new_tenant("alerted")
    assert (await budget(api, tenant))["amount"] is None
    answer = await put(api, tenant, amount="4", thresholds=[50, 80, 100])
    assert answer.status_code == 200, answer.text
    alerts = api.state.budgets.alerts
    for tokens, reached in ((4, []), (1, [50]), (2, [50]), (1, [50, 80]), (9, [50, 80, 100])):
        await use(api, of(tenant, tokens))
        await alerts.look()
        assert await thresholds(api, tenant) == reached
    shown = await budget(api, tenant)
    assert Decimal(shown["spent"]) == Decimal("6.8")
    assert (shown["currency"], shown["hard"], Decimal(shown["amount"])) == (
        "USD",
        False,
        Decimal(4),
    )
    assert [each["threshold"] for each in shown["alerts"]] == [50, 80, 100]
    first = (await told(api, tenant))[0]
    now = datetime.now(UTC)
    assert (first["currency"], first["period"]) == ("USD", f"{now:%Y-%m}")
    assert (Decimal(first["amount"]), Decimal(first["spent"])) == (Decimal(4), Decimal(2))
    assert (await ask(api, tenant)).status_code == 200, "it only tells"


async def test_two_workers_a_restart_and_an_emptied_redis_tell_nothing_twice(
    make_api: MakeApi,
) -> None:
    async with make_api() as one, make_api() as two:
        tenant = await one.new_tenant("once")
        await put(one, tenant, amount="10", thresholds=[10, 50, 100])
        await use(one, of(tenant, 13))
        alerts = [AccountAlerts(each.state.db) for each in (one, two) for _ in range(4)]
        await asyncio.gather(*(each.sweep() for each in alerts))
        assert await thresholds(one, tenant) == [10, 50]
        await one.state.redis.flushall()
        await AccountAlerts(two.state.db).sweep()  # a worker that begins
        await one.state.budgets.alerts.look()
        assert await thresholds(two, tenant) == [10, 50]
        await use(two, of(tenant, 13))
        await asyncio.gather(one.state.budgets.alerts.sweep(), two.state.budgets.alerts.sweep())
        assert await thresholds(two, tenant) == [10, 50, 100]


async def test_currencies_are_those_of_lists_that_nothing_hides(api: Api) -> None:
    """A tenant's own list holds for all that it uses, whatever everybody's is in."""
    tenant = await api.new_tenant("euros only")
    await add_prices(api, tenant=tenant.id, currency="EUR")
    assert (await budget(api, tenant))["currencies"] == ["EUR"]
    assert (await put(api, tenant, amount="10", currency="USD")).status_code == 400
    assert (await put(api, tenant, amount="10", currency="EUR", hard=True)).status_code == 200


async def test_a_budget_that_refuses_compares_no_other_currency(api: Api) -> None:
    """Neither with what was used in one before, nor with what is priced in one later."""
    tenant = await api.new_tenant("from yen to dollars")
    await add_prices(api, tenant=tenant.id, currency="JPY")
    await use(api, of(tenant, 4))
    await asyncio.sleep(1.1)  # a list holds from the next second on
    await add_prices(api, tenant=tenant.id, currency="USD")
    refused = await put(api, tenant, amount="3", currency="USD", hard=True)
    assert refused.json()["error"]["code"] == "several_currencies"
    other = await api.new_tenant("from dollars to yen")
    await add_prices(api, tenant=other.id, currency="USD")
    assert (await put(api, other, amount="3", currency="USD", hard=True)).status_code == 200
    await asyncio.sleep(1.1)
    await add_prices(api, tenant=other.id, currency="JPY")
    await use(api, of(other, 4))
    context, now = await api.state.auth.tenant(other.key), datetime.now(UTC)
    assert "account_month" not in {each.name for each in budgets_of(context, now, "JPY")}
    assert "account_month" in {each.name for each in budgets_of(context, now, "USD")}


async def test_a_budget_counts_in_its_own_currency(api: Api) -> None:
    """What an adapter's list charges in euros is not added to dollars."""
    await api.put_plan("twofold", {})
    tenant = await api.new_tenant("two currencies", "twofold")
    await add_prices(api, plan="twofold", currency="USD")
    await add_prices(api, plan="twofold", model="in-euros", currency="EUR")
    assert (await budget(api, tenant))["currencies"] == ["EUR", "USD"]
    assert (await put(api, tenant, amount="10", currency="USD")).status_code == 200
    now = datetime.now(UTC)
    euros = record_of(tenant, now, "in-euros", plan="twofold", output_tokens=90 * 10**6)
    await use(api, euros, of(tenant, 4, plan="twofold"))
    await api.state.budgets.alerts.look()
    assert await told(api, tenant) == []
    assert Decimal((await budget(api, tenant))["spent"]) == 4
    await use(api, of(tenant, 1, plan="twofold"))
    await api.state.budgets.alerts.look()
    (alert,) = await told(api, tenant)
    assert (alert["threshold"], alert["currency"], Decimal(alert["spent"])) == (
        50,
        "USD",
        Decimal(5),
    )
    strict = await put(api, tenant, amount="10", currency="USD", hard=True)
    assert strict.json()["error"]["code"] == "several_currencies"
    pounds = await put(api, tenant, amount="10", currency="GBP")
    assert (pounds.status_code, pounds.json()["error"]["param"]) == (400, "currency")


async def test_a_raised_budget_has_its_thresholds_anew_and_a_lowered_one_tells_now(
    api: Api,
) -> None:
    tenant = await api.new_tenant("raised")
    await use(api, of(tenant, 5))  # 2 USD
    await put(api, tenant, amount="4", thresholds=[50, 100])
    assert await thresholds(api, tenant) == [50]
    await put(api, tenant, amount="2", thresholds=[50, 100])
    assert await thresholds(api, tenant) == [50, 100], "half of it is no news"
    await put(api, tenant, amount="8", thresholds=[50, 100])
    shown = await budget(api, tenant)
    assert (shown["alerts"], shown["spent"]) == ([], "2.000000000000")
    await put(api, tenant, amount="4", thresholds=[50, 100])
    assert await thresholds(api, tenant) == [50, 100], "it was told already"


async def test_rewriting_thresholds_and_amounts_tells_nothing_again(api: Api) -> None:
    """One event for a threshold and a month; more comes only with more that is spent."""
    tenant = await api.new_tenant("rewriting")
    await use(api, of(tenant, 10))  # 4 USD
    for threshold in range(1, 101):
        await put(api, tenant, amount="4", thresholds=[threshold])
    assert await thresholds(api, tenant) == [1]
    shown = await budget(api, tenant)
    assert [each["threshold"] for each in shown["alerts"]] == [100]
    for cents in range(300, 400, 10):
        await put(api, tenant, amount=f"{cents / 100}", thresholds=[50, 100])
        await api.state.budgets.alerts.sweep()
    assert await thresholds(api, tenant) == [1]
    await put(api, tenant, amount="6", thresholds=[50, 100])
    await use(api, of(tenant, 5))
    await api.state.budgets.alerts.look()
    assert await thresholds(api, tenant) == [1, 100]


async def test_a_month_ends_with_its_own_alerts(api: Api) -> None:
    """What is stored just after midnight is of the month before, and the new month begins at 0."""
    tenant = await api.new_tenant("months")
    midnight = month_start(datetime.now(UTC))
    before = midnight - timedelta(seconds=1)
    await put(api, tenant, amount="4", thresholds=[50])
    alerts = AccountAlerts(api.state.db)
    await use(api, of(tenant, 5, before))
    await alerts.sweep(midnight + timedelta(minutes=1))
    assert await told(api, tenant) == [], "that month had no such budget"
    async with api.state.db.admin_session() as session:
        its = AccountBudgetRow.tenant_id == tenant.id
        await session.execute(update(AccountBudgetRow).where(its).values(updated_at=before))
    await alerts.sweep(midnight + timedelta(hours=2))
    assert await told(api, tenant) == [], "that month is over"
    await alerts.sweep(midnight + timedelta(minutes=1))
    assert [each["period"] for each in await told(api, tenant)] == [f"{before:%Y-%m}"]
    shown = await budget(api, tenant)
    assert Decimal(shown["spent"]) == 0
    assert shown["alerts"] == []


async def test_what_waited_for_a_price_is_told_by_the_sweep(api: Api) -> None:
    await api.put_plan("unpriced", {})
    tenant = await api.new_tenant("waited", "unpriced")
    some = BASE | {"output": [{"class": "priority", "price": "1"}]}
    listed = await add_prices(api, plan="unpriced", per_million=some)
    await put(api, tenant, amount="4", thresholds=[50])
    await use(api, of(tenant, 2, plan="unpriced"))
    await api.state.budgets.alerts.look()
    assert await told(api, tenant) == []
    body = {"per_million": {"output": "1"}}
    await api.admin("PATCH", f"/admin/v1/prices/{listed['id']}", json=body)
    await api.state.budgets.alerts.sweep()
    assert await thresholds(api, tenant) == [50]


async def test_a_hard_budget_refuses_what_would_pass_it(api: Api) -> None:
    tenant = await api.new_tenant("hard")
    assert (await put(api, tenant, amount=f"{2 * COST:f}", hard=True)).status_code == 200
    for _ in range(2):
        assert (await ask(api, tenant)).status_code == 200
    refused = await ask(api, tenant)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "insufficient_quota")
    assert (error["budget"], error["currency"]) == ("account_month", "USD")
    assert error["message"].startswith(f"Your account's monthly budget ({2 * COST:f} USD) is used")
    limits = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    (shown,) = limits["budgets"]
    assert (shown["name"], shown["currency"], shown["state"]) == ("account_month", "USD", "hard")
    assert (await api.call(tenant.key, "DELETE", "/v1/budget")).status_code == 200
    assert (await ask(api, tenant)).status_code == 200
    assert (await budget(api, tenant))["amount"] is None
    page = (await api.call(tenant.key, "GET", "/v1/audit_logs")).json()["data"]
    done = [each["action"] for each in page if each["action"].startswith("account_budget")]
    assert done == ["account_budget.delete", "account_budget.put"]


async def test_the_plans_month_and_the_accounts_are_told_apart(api: Api) -> None:
    """Both have the same counter; both may have the same cap."""
    await api.put_plan("same", {"budget": f"{COST:f}", "budget_soft": 1})
    tenant = await api.new_tenant("same cap", "same")
    await put(api, tenant, amount=f"{COST:f}", hard=True)
    assert (await ask(api, tenant)).status_code == 200
    async with asyncio.timeout(10):
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/events?type=budget.hard")).json()
            names = {each["data"]["budget"]: each["data"]["currency"] for each in page["data"]}
            if len(names) == 2:
                break
            await asyncio.sleep(0.02)
    assert names == {"account_month": "USD", "plan_month": "USD"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "amount"),
        ({"amount": "0"}, "amount"),
        ({"amount": "1e30"}, "amount"),
        ({"amount": "1", "thresholds": [0]}, "thresholds"),
        ({"amount": "1", "thresholds": [201]}, "thresholds"),
        ({"amount": "1", "thresholds": [50, 50]}, "thresholds"),
        ({"amount": "1", "thresholds": list(range(1, 12))}, "thresholds"),
        ({"amount": "1", "currency": "usd"}, "currency"),
    ],
)
async def test_a_bad_budget(api: Api, body: dict[str, Any], param: str) -> None:
    answer = await put(api, await api.new_tenant("bad budget"), **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)


async def test_a_tenant_sees_its_own_money_and_nobody_elses(api: Api) -> None:
    """Balances, credit without the operator's note, and what the operator sees of it."""
    one, other = await api.new_tenant("one"), await api.new_tenant("other")
    grant = {"amount": "5", "currency": "USD", "note": "churn risk"}
    await api.admin("POST", f"/admin/v1/tenants/{one.id}/credits", json=grant)
    await put(api, one, amount="7", thresholds=[90])
    (mine,) = (await api.call(one.key, "GET", "/v1/credits")).json()["data"]
    assert (Decimal(mine["amount"]), mine["currency"]) == (Decimal(5), "USD")
    owed = (await api.call(one.key, "GET", "/v1/balances")).json()["data"]
    assert {each["account"]: Decimal(each["balance"]) for each in owed}["credit:granted"] == -5
    paths: Sequence[str] = ("/v1/credits", "/v1/balances", "/v1/ledger", "/v1/budget", "/v1/prices")
    for path in paths:
        assert "churn risk" not in (await api.call(one.key, "GET", path)).text, path
    assert (await api.call(other.key, "GET", "/v1/credits")).json()["data"] == []
    assert (await api.call(other.key, "GET", "/v1/balances")).json()["data"] == []
    assert (await budget(api, other))["amount"] is None
    seen = (await api.admin("GET", f"/admin/v1/tenants/{one.id}/budget")).json()
    assert (Decimal(seen["amount"]), seen["thresholds"]) == (Decimal(7), [90])
    assert (await api.admin("GET", "/admin/v1/tenants/nobody/budget")).status_code == 404


async def test_the_operator_sees_a_tenants_settings_and_changes_none(api: Api) -> None:
    tenant = await api.new_tenant("chosen")
    await api.call(tenant.key, "PATCH", "/v1/settings", json={"keep_contents_days": 3})
    path = f"/admin/v1/tenants/{tenant.id}/settings"
    seen = (await api.admin("GET", path)).json()
    assert (seen["keep_contents_days"], seen["draft_from_answers"]) == (3, False)
    assert (await api.admin("PATCH", path, json={"keep_contents_days": 9})).status_code == 405
    assert (await api.admin("GET", "/admin/v1/tenants/nobody/settings")).status_code == 404
