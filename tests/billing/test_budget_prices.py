"""What budgets hold by prices of classes and tiers: never less than the request can cost, and
flex's price once it is served as flex."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from api_harness import Api, TestTenant
from tenant_contexts import plan_terms, tenant_context
from tenora_engine.events import UsageRecord
from tenora_engine.request import AdapterRef, GenerationRequest, SamplingParams, Tenant
from tenora_platform.billing.price_lists import Meter, PriceList, Prices, Scope, Tier, Tiers
from tenora_platform.billing.rating import Volume
from tenora_platform.budgets.estimate import estimate
from tenora_platform.budgets.store import Work
from tenora_platform.errors import UnavailableError

NOW = datetime(2030, 1, 15, tzinfo=UTC)
TENANT = tenant_context(plan_terms(sla_class="priority", tiers=("priority",)))


@dataclass
class Run:
    request: GenerationRequest
    begun: bool = True

    @property
    def usage(self) -> Sequence[UsageRecord]:
        return []


def run(*, adapter: bool = False, adapter_id: str = "") -> Run:
    return Run(
        GenerationRequest(
            request_id="chatcmpl_1",
            tenant=Tenant(key="t", namespace="n"),
            prompt_token_ids=[1, 2, 3, 4],
            sampling=SamplingParams(max_tokens=10, n=2),
            adapter=AdapterRef(digest="d", rank=8) if adapter else None,
            context={"tenant_id": "t", "model": "m", "adapter_id": adapter_id},
        )
    )


def prices(tiers: Mapping[tuple[Meter, str], Tiers], scope: Scope | None = None) -> PriceList:
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    return PriceList("a", 7, scope or Scope(None, None, None, None), "USD", begin, None, tiers)


def flat(price: str) -> Tiers:
    return (Tier(0, Decimal(price)),)


LISTS: Mapping[tuple[Meter, str], Tiers] = {
    ("uncached_prefill", ""): flat("1"),
    ("cached_prefill", ""): flat("0.1"),
    ("output", ""): flat("2"),
    ("output", "flex"): flat("0.5"),
    ("output", "priority"): (Tier(0, Decimal(8)), Tier(100, Decimal(9)), Tier(200, Decimal(3))),
    ("cold_load", ""): flat("50"),
}


def work(
    classes: Sequence[str], used: Mapping[Volume, int] | None = None, of: Run | None = None
) -> Work:
    lists = Prices([prices(LISTS)])
    return estimate(lists, used or {}, TENANT, [of or run()], "m", classes, NOW)


def volume(quantity: int) -> Mapping[Volume, int]:
    return {Volume("t", NOW.date().replace(day=1), 7, "m", "priority", "output"): quantity}


def test_the_class_that_serves_is_what_is_held() -> None:
    assert work(["default"]).token_nanos == 2000
    assert work(["flex"]).token_nanos == 500
    assert work(["flex", "default"]).token_nanos == 2000  # whichever it will be


@pytest.mark.parametrize(("used", "nanos"), [(0, 9000), (100, 9000), (199, 9000), (200, 3000)])
def test_the_dearest_tier_that_is_left(used: int, nanos: int) -> None:
    assert work(["priority"], volume(used)).token_nanos == nanos


def test_a_cold_load_is_held_once() -> None:
    """By a request with an adapter; whether it is cold is known later."""
    assert [each.prompt_nanos for each in work(["default"]).sequences] == [4000, 0]
    cold = work(["default"], of=run(adapter=True))
    assert [each.prompt_nanos for each in cold.sequences] == [4000 + 50_000, 0]


def test_an_adapters_own_price_is_held() -> None:
    own = prices({**LISTS, ("output", ""): flat("70")}, Scope("ad", "t", None, None))
    both = Prices([prices(LISTS), own])
    with_own = estimate(both, {}, TENANT, [run(adapter_id="ad")], "m", ["default"], NOW)
    without = estimate(both, {}, TENANT, [run(adapter_id="other")], "m", ["default"], NOW)
    assert (with_own.token_nanos, without.token_nanos) == (70_000, 2000)


def test_a_class_without_a_price_is_refused() -> None:
    lists = Prices([prices({("uncached_prefill", ""): flat("1"), ("output", "flex"): flat("1")})])
    with pytest.raises(UnavailableError, match="class 'priority'"):
        estimate(lists, {}, TENANT, [run()], "m", ["priority"], NOW)


def test_a_prompt_is_held_at_the_dearer_of_cached_and_uncached() -> None:
    dear = Prices([prices({**LISTS, ("cached_prefill", ""): flat("5")})])
    held = estimate(dear, {}, TENANT, [run()], "m", ["default"], NOW)
    assert [each.prompt_nanos for each in held.sequences] == [20_000, 0]


def test_a_list_without_a_price_for_cached_tokens_is_refused() -> None:
    """A request that has some could not be charged, and its budget would hold nothing."""
    lists = {key: tiers for key, tiers in LISTS.items() if key[0] != "cached_prefill"}
    with pytest.raises(UnavailableError, match="cached_prefill"):
        estimate(Prices([prices(lists)]), {}, TENANT, [run()], "m", ["default"], NOW)


async def ask(api: Api, tenant: TestTenant) -> Any:
    body = {"model": "fake-base", "prompt": "abcd", "max_tokens": 10}
    return await api.call(tenant.key, "POST", "/v1/completions", json=body)


async def priced_tenant(api: Api, name: str, **limits: Any) -> TestTenant:
    """Output costs 0.001 a request as priority, a thousandth of that as flex."""
    await api.put_plan(name, limits, sla_class="priority")
    made = await api.new_tenant(name, name)
    output = [{"price": "0.1"}, {"class": "priority", "price": "100"}]
    body = {
        "tenant": made.id,
        "per_million": {"uncached_prefill": "0", "cached_prefill": "0", "output": output},
    }
    answer = await api.admin("POST", "/admin/v1/prices", json=body)
    assert answer.status_code == 201, answer.text
    api.state.budgets._prices._lists = None  # as if it had been there for a while
    return made


async def spent(api: Api, tenant: TestTenant) -> Decimal:
    found = (await api.call(tenant.key, "GET", "/v1/limits")).json()["budgets"]
    assert Decimal(found[0]["held"]) == 0
    return Decimal(found[0]["spent"])


async def test_a_degraded_request_is_held_at_flexs_price(api: Api) -> None:
    """There is no room left for one at its own class's price."""
    tenant = await priced_tenant(
        api, "degrades", budget="0.0015", budget_soft=0.5, budget_action="degrade"
    )
    first = await ask(api, tenant)
    assert first.headers["x-tenora-tier"] == "priority"
    for _ in range(3):
        answer = await ask(api, tenant)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-tenora-tier"] == "flex"
    assert await spent(api, tenant) == Decimal("0.001003")


async def test_one_that_is_not_degraded_is_held_at_its_own(api: Api) -> None:
    tenant = await priced_tenant(api, "refuses", budget="0.0015", budget_soft=0.5)
    assert (await ask(api, tenant)).status_code == 200
    assert (await ask(api, tenant)).status_code == 429
    assert await spent(api, tenant) == Decimal("0.001")


async def test_what_is_spent_by_tiers_is_what_is_billed(api: Api) -> None:
    """The request's own process counts at most as much; the books' word stands."""
    await api.put_plan("tiered", {"budget": "1"})
    tenant = await api.new_tenant("tiered", "tiered")
    output = [{"price": "100"}, {"from": 5, "price": "1"}]
    body = {
        "tenant": tenant.id,
        "per_million": {"uncached_prefill": "0", "cached_prefill": "0", "output": output},
    }
    made = await api.admin("POST", "/admin/v1/prices", json=body)
    assert made.status_code == 201, made.text
    api.state.budgets._prices._lists = None
    for _ in range(2):
        assert (await ask(api, tenant)).status_code == 200
    assert await spent(api, tenant) >= Decimal("0.000515")
    async with asyncio.timeout(10):
        while True:
            if await spent(api, tenant) == Decimal("0.000515"):  # 5 * 100 + 15 * 1
                break
            await asyncio.sleep(0.02)
