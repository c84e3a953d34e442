"""Amounts of one currency count for no budget in another: not of a plan or a key, not what is held,
not of credit, not in events, and not in a forecast."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_harness import Api, TestTenant
from price_lists import add_prices, record_of
from tenant_contexts import plan_terms, tenant_context
from tenora_engine.events import UsageRecord
from tenora_platform.auth import Caps, TenantContext
from tenora_platform.billing.price_lists import PriceList, Prices, Scope
from tenora_platform.budgets.accounts import NO_CURRENCY, Budget, budgets_of
from tenora_platform.budgets.alerts import AccountAlerts
from tenora_platform.budgets.credit import credit_of
from tenora_platform.budgets.fallback import LocalBooks
from tenora_platform.budgets.hold import BudgetHold
from tenora_platform.budgets.store import BudgetStore, Snapshot, Wanted, Work
from tenora_platform.forecasts.schemas import CurrencyForecast
from tenora_platform.forecasts.service import _budget
from tenora_platform.usage.sink import UsageSink

NOW = datetime.now(UTC)
NANO = 10**9


async def ask(api: Api, tenant: TestTenant) -> httpx.Response:
    wanted = {"model": "fake-base", "prompt": "abcd", "max_tokens": 10}
    return await api.call(tenant.key, "POST", "/v1/completions", json=wanted)


async def limits(api: Api, tenant: TestTenant) -> dict[str, Any]:
    found: dict[str, Any] = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    return found


def spent(limits: dict[str, Any], name: str) -> dict[str, Decimal]:
    found = [each for each in limits["budgets"] if each["name"] == name]
    assert len({each["currency"] for each in found}) == len(found)
    return {each["currency"]: Decimal(each["spent"]) for each in found}


async def use(api: Api, *records: UsageRecord) -> None:
    await UsageSink(api.state.engine, api.state.db, told=api.state.budgets.book).store(records)


@pytest.fixture
async def plan(api: Api, request: pytest.FixtureRequest) -> str:
    """Charged in dollars, and for one model in euros; 1 a million tokens of output."""
    name = f"p{abs(hash(request.node.name)) % 10**9}"
    await api.put_plan(name, {"budget": "5"} if "plan" in request.node.name else {})
    await add_prices(api, plan=name, currency="USD")
    await add_prices(api, plan=name, model="in-euros", currency="EUR")
    api.state.budgets._prices._read_at = -100.0  # the lists are kept for seconds
    return name


def of(tenant: TestTenant, plan: str, model: str, millions: int, **more: Any) -> UsageRecord:
    made = record_of(
        tenant, datetime.now(UTC), model, plan=plan, output_tokens=millions * 10**6, **more
    )
    made.context["api_key_id"] = tenant.key_id
    return made


async def test_a_plans_budget_counts_each_currency_by_itself(api: Api, plan: str) -> None:
    tenant = await api.new_tenant(plan, plan)
    assert (await ask(api, tenant)).status_code == 200  # so that there are counters
    await use(api, of(tenant, plan, "in-euros", 90))
    assert (await ask(api, tenant)).status_code == 200
    shown = spent(await limits(api, tenant), "plan_month")
    assert set(shown) == {"USD", "EUR"}
    assert shown["EUR"] == 90
    assert shown["USD"] < 1
    await use(api, of(tenant, plan, "fake-base", 5))
    refused = await ask(api, tenant)
    assert refused.status_code == 429
    assert refused.json()["error"]["currency"] == "USD"
    await api.state.budgets._look()
    await api.state.budgets._teller.finish(5)
    events = (await api.call(tenant.key, "GET", "/v1/events?type=budget.hard")).json()["data"]
    told = {each["data"]["currency"]: Decimal(each["data"]["spent"]) for each in events}
    assert told["EUR"] == 90
    assert 5 <= told["USD"] < 6
    assert len(events) == 2


async def test_books_that_are_read_anew_say_the_same_of_a_plan(api: Api, plan: str) -> None:
    """After Redis was emptied, and when the true-up compares."""
    tenant = await api.new_tenant(plan, plan)
    await use(api, of(tenant, plan, "in-euros", 90), of(tenant, plan, "fake-base", 3))
    assert (await ask(api, tenant)).status_code == 200
    before = spent(await limits(api, tenant), "plan_month")
    await api.state.redis.delete(f"tenora:budgets:{{{tenant.id}}}:spent")
    after = spent(await limits(api, tenant), "plan_month")
    assert after == before
    assert after["EUR"] == 90
    assert 3 <= after["USD"] < 4


async def test_a_keys_budget_counts_each_currency_by_itself(api: Api, plan: str) -> None:
    tenant = await api.new_tenant(plan, plan, limits={"budget": "5", "budget_day": "5"})
    assert (await ask(api, tenant)).status_code == 200
    await use(api, of(tenant, plan, "in-euros", 90))
    assert (await ask(api, tenant)).status_code == 200
    shown = await limits(api, tenant)
    for name in ("key_day", "key_month"):
        assert spent(shown, name)["EUR"] == 90
        assert spent(shown, name)["USD"] < 1
    await use(api, of(tenant, plan, "fake-base", 5))
    assert (await ask(api, tenant)).status_code == 429


async def test_credit_pays_in_its_own_currency_alone(api: Api, plan: str) -> None:
    tenant = await api.new_tenant(plan, plan)
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    for amount, currency in (("10", "USD"), ("70", "EUR")):
        body = {"amount": amount, "currency": currency}
        assert (await api.admin("POST", path, json=body)).is_success
    assert (await ask(api, tenant)).status_code == 200
    at = datetime.now(UTC)
    euros = record_of(tenant, at, "in-euros", plan=plan, output_tokens=60 * 10**6)
    await use(api, euros)
    credit = (await limits(api, tenant))["credit"]
    assert credit["currency"] == "USD"
    assert Decimal(credit["granted"]) == 10
    assert 9 < Decimal(credit["balance"]) < 10
    async with api.state.db.tenant_session(tenant.id) as session:
        for currency, cap in (("USD", 10), ("EUR", 70), ("JPY", 0)):
            assert (await credit_of(session, tenant.id, at, currency)).cap == cap
    dollars = record_of(tenant, datetime.now(UTC), "fake-base", plan=plan, output_tokens=10**7)
    await use(api, dollars)
    assert (await ask(api, tenant)).status_code == 429, "euros are left, dollars are not"


def context() -> TenantContext:
    plan = plan_terms(budget=Decimal(10))
    return tenant_context(plan, tenant_id="t_held", key_caps=Caps(budget=Decimal(10)))


def work(currency: str, event_id: str) -> Work:
    wanted = [Wanted(event_id, 8 * NANO, 1)]
    return Work("m", wanted, 0.0, 1, currency)


async def test_what_is_held_in_one_currency_is_not_held_in_another(api: Api) -> None:
    store, tenant = BudgetStore(api.state.redis, lease_ms=60_000), context()
    for currency in ("USD", "EUR"):
        names = [each.account for each in budgets_of(tenant, NOW, currency)]
        for name in names:
            await api.state.redis.hset(f"tenora:budgets:{{{tenant.tenant_id}}}:spent", name, "0")
    answers = [
        await store.acquire(
            tenant.tenant_id,
            tenant.lineage,
            budgets_of(tenant, NOW, currency),
            work(currency, f"{currency}{number}"),
        )
        for number in range(2)
        for currency in ("USD", "EUR")
    ]
    assert [each.what for each in answers] == ["held", "held", "refused", "refused"]
    assert [level.held for level in answers[1].levels] == [0, 0]
    assert [level.held for level in answers[3].levels] == [8 * NANO] * 2


async def test_what_an_earlier_release_left_counts_for_nothing_and_hinders_nobody(api: Api) -> None:
    """Counters, holds and events without a currency: the books say what they were."""
    store, tenant = BudgetStore(api.state.redis, lease_ms=60_000), context()
    prefix, of = f"tenora:budgets:{{{tenant.tenant_id}}}", budgets_of(tenant, NOW, "USD")
    far = int(NOW.timestamp() * 1000) + 60_000
    old = f"{NOW:%Y-%m}"
    await api.state.redis.delete(*(f"{prefix}:{each}" for each in ("spent", "holds", "events")))
    await api.state.redis.hset(f"{prefix}:spent", f"m:{old}", str(9 * NANO))
    await api.state.redis.hset(f"{prefix}:spent", "credit_cap", "7")
    await api.state.redis.hset(f"{prefix}:holds", "old:0", f"{far}|{9 * NANO}|k")
    await api.state.redis.hset(f"{prefix}:events", "told:0", f"p|{9 * NANO}|1|{NOW:%Y-%m-%d}|k")
    await api.state.redis.zadd(f"{prefix}:pending", {"told:0": far})
    asked = (tenant.tenant_id, tenant.lineage, of, work("USD", "new:0"))
    assert (await store.acquire(*asked)).what == "unknown"
    spent = dict.fromkeys([each.account for each in of], 0)
    await store.seed(tenant.tenant_id, Snapshot(0, spent, (), NOW, {}), mend=False)
    answer = await store.acquire(*asked)
    assert answer.what == "held"
    assert [(level.spent, level.held) for level in answer.levels] == [(0, 0)] * 2


class Books:
    """What a seeder says: nothing is spent."""

    async def spent(self, tenant_id: str, accounts: list[str], now: datetime) -> dict[str, int]:
        return dict.fromkeys(accounts, 0)


@pytest.mark.parametrize(("currency", "held"), [("USD", 8 * NANO), ("EUR", 0)])
async def test_without_redis_too(currency: str, held: int) -> None:
    local, tenant = LocalBooks(Books(), lambda: 1), context()  # type: ignore[arg-type]
    hold = BudgetHold(None, tenant, "m", "USD", {"x:0": 8 * NANO}, ())  # type: ignore[arg-type]
    local.took(hold)
    asked = budgets_of(tenant, NOW, currency)
    answer = await local.acquire(tenant, asked, work(currency, "y:0"), NOW)
    assert [level.held for level in answer.levels] == [held] * 2
    assert answer.what == ("refused" if held else "held")


@pytest.mark.parametrize("currency", ["USD", "EUR", None])
def test_every_account_names_its_currency(currency: str | None) -> None:
    tenant = tenant_context(
        plan_terms(budget=Decimal(1), budget_day=Decimal(1)),
        key_caps=Caps(budget=Decimal(1), budget_day=Decimal(1)),
        prepaid=True,
        account_cap=Decimal(1),
        account_currency="USD",
    )
    found: list[Budget] = budgets_of(tenant, NOW, currency)
    assert ("account_month" in {each.name for each in found}) == (currency != "EUR")
    for each in found:
        assert each.account.endswith(f":{each.currency or NO_CURRENCY}")
        assert each.currency == ("USD" if each.name == "account_month" else currency)


def test_a_forecast_of_a_budget_goes_by_its_currency() -> None:
    def in_currency(name: str, amount: str) -> CurrencyForecast:
        return CurrencyForecast.model_construct(currency=name, spent=amount, mean_day=amount)

    found = [in_currency("EUR", "90"), in_currency("USD", "0.01")]
    at = datetime(2026, 11, 15, tzinfo=UTC)
    by_currency = {
        currency: _budget(plan_terms(budget=Decimal(5)), found, at, currency)
        for currency in ("USD", "EUR", "JPY", None)
    }
    reached = {name: each and each.reached_on for name, each in by_currency.items()}
    assert reached["EUR"] == at.date()
    assert (reached["USD"], reached["JPY"], reached[None]) == (None, None, None)


async def change_of_currency(api: Api, tenant: TestTenant, plan: str, millions: int) -> None:
    """So many dollars are spent, and then the tenant's prices are in euros."""
    await add_prices(api, tenant=tenant.id, currency="USD")
    await use(api, of(tenant, plan, "fake-base", millions))
    await asyncio.sleep(1.1)  # a list holds from the next second on
    await add_prices(api, tenant=tenant.id, currency="EUR")
    api.state.budgets._prices._read_at = -100.0


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_what_was_spent_before_a_plans_prices_changed_is_still_listed(
    api: Api, plan: str, is_emptied: bool
) -> None:
    tenant = await api.new_tenant(plan, plan, limits={"budget": "9"})
    await change_of_currency(api, tenant, plan, 5)
    if is_emptied:
        await api.state.redis.flushall()
    shown = await limits(api, tenant)
    assert shown["currency"] == "EUR"
    for name in ("plan_month", "key_month"):
        assert spent(shown, name) == {"EUR": 0, "USD": 5}
    binds = {(each["name"], each["currency"]): each["binds"] for each in shown["budgets"]}
    assert {each for each, does in binds.items() if does} == {
        ("plan_month", "EUR"),
        ("key_month", "EUR"),
    }
    costs = (await api.call(tenant.key, "GET", "/v1/costs?bucket=1mo")).json()["data"]
    assert {each["currency"] for day in costs for each in day["results"]} == {"USD"}


async def test_credit_is_listed_by_currency_spent_or_not(api: Api, plan: str) -> None:
    tenant = await api.new_tenant(plan, plan)
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    for millions in (0, 3):
        if not millions:
            body = {"amount": "5", "currency": "EUR"}
            assert (await api.admin("POST", path, json=body)).is_success
        else:
            await use(api, of(tenant, plan, "in-euros", millions))
        shown = await limits(api, tenant)
        assert shown["credit"] == shown["credits"][0]
        balances = {each["currency"]: Decimal(each["balance"]) for each in shown["credits"]}
        assert balances == {"USD": 0, "EUR": 5 - millions}
        assert {each["name"] for each in shown["budgets"]} <= {"plan_month"}
    for currency, amount in (("JPY", "7"), ("USD", "2")):
        body = {"amount": amount, "currency": currency}
        assert (await api.admin("POST", path, json=body)).is_success
    shown = await limits(api, tenant)
    assert shown["credits"][0]["currency"] == "USD"
    balances = {each["currency"]: Decimal(each["balance"]) for each in shown["credits"]}
    assert balances == {"USD": 2, "EUR": 2, "JPY": 7}, "nothing is priced in yen"


async def test_a_tenant_has_one_own_currency_wherever_it_is_said(api: Api, plan: str) -> None:
    """Credit, budgets, limits, forecasts and the operator's page: that of its own list."""
    tenant = await api.new_tenant(plan, plan)
    await add_prices(api, tenant=tenant.id, model="fake-base", currency="JPY")
    api.state.budgets._prices._read_at = -100.0
    path = f"/admin/v1/tenants/{tenant.id}/credits"
    granted = (await api.admin("POST", path, json={"amount": "5"})).json()
    budget = (await api.call(tenant.key, "GET", "/v1/budget")).json()
    forecast = (await api.call(tenant.key, "GET", "/v1/forecast")).json()
    costs = (await api.admin("GET", f"/admin/v1/costs/tenants?q={tenant.id}")).json()["data"]
    shown = await limits(api, tenant)
    said = {
        granted["currency"],
        budget["currency"],
        shown["currency"],
        shown["credit"]["currency"],
        *(each["budget"]["currency"] for each in costs if each["budget"]),
        *([forecast["budget"]["currency"]] if forecast["budget"] else []),
    }
    assert said == {"JPY"}
    assert budget["currencies"] == ["EUR", "JPY", "USD"]
    assert (await ask(api, tenant)).status_code == 200


_SCOPES = st.builds(
    Scope,
    st.sampled_from([None, "adapter"]),
    st.sampled_from([None, "t", "other"]),
    st.sampled_from([None, "p", "other"]),
    st.sampled_from([None, "m", "n"]),
)


@given(st.lists(st.tuples(_SCOPES, st.sampled_from(["USD", "EUR", "JPY"])), max_size=6))
def test_a_tenants_own_currency_is_one_in_which_something_is_charged(
    made: list[tuple[Scope, str]],
) -> None:
    lists = [
        PriceList(str(no), no, scope, currency, NOW, None, {})
        for no, (scope, currency) in enumerate(made)
    ]
    prices = Prices(lists)
    charged = {
        price.currency
        for adapter in (None, "adapter")
        for model in ("m", "n", "any")
        if (price := prices.choose(Scope(adapter, "t", "p", model), NOW))
    }
    found = prices.currencies_of("t", "p", NOW)
    assert charged <= set(found)
    assert len(set(found)) == len(found)
    if of_all := prices.choose(Scope(None, "t", "p", None), NOW):
        assert of_all.scope.tenant_id is None or found[0] == of_all.currency


async def test_a_hard_account_budget_says_when_it_does_not_bind(api: Api, plan: str) -> None:
    tenant = await api.new_tenant(plan, "standard")
    await add_prices(api, tenant=tenant.id, currency="USD")

    async def shown() -> tuple[bool, bool]:
        own = (await api.call(tenant.key, "GET", "/v1/budget")).json()
        assert own["currency"] == "USD"
        return own["hard"], own["binds"]

    for hard in (False, True):
        body = {"amount": "3", "hard": hard}
        assert (await api.call(tenant.key, "PUT", "/v1/budget", json=body)).is_success
        assert await shown() == (hard, hard)
    await change_of_currency(api, tenant, "standard", 4)
    assert await shown() == (True, False)
    (listed,) = (await limits(api, tenant))["budgets"]
    assert (listed["name"], listed["currency"], listed["binds"]) == (
        "account_month",
        "USD",
        False,
    )
    assert (Decimal(listed["spent"]), listed["state"]) == (Decimal(4), "hard")
    assert (await ask(api, tenant)).status_code == 200
    workers = [AccountAlerts(api.state.db) for _ in range(2)]
    await asyncio.gather(*(each.sweep() for each in workers for _ in range(2)))
    events = await api.call(tenant.key, "GET", "/v1/events?type=budget.unbound")
    (told,) = (each["data"] for each in events.json()["data"])
    assert (told["currency"], told["currencies"]) == ("USD", ["EUR"])


async def test_a_budget_that_binds_or_only_tells_is_not_said_to_be_unbound(api: Api) -> None:
    for hard, then in ((True, "USD"), (False, "EUR")):
        tenant = await api.new_tenant("bound")
        await add_prices(api, tenant=tenant.id, currency="USD")
        body = {"amount": "3", "hard": hard}
        assert (await api.call(tenant.key, "PUT", "/v1/budget", json=body)).is_success
        await asyncio.sleep(1.1)
        await add_prices(api, tenant=tenant.id, currency=then)
        await AccountAlerts(api.state.db).sweep()
        events = await api.call(tenant.key, "GET", "/v1/events?type=budget.unbound")
        assert events.json()["data"] == []
