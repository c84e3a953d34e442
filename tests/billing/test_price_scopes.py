"""Prices over HTTP by class, tier and scope, through the sink to what a tenant is charged; what a
tenant sees of them, and what a new list would change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from api_harness import Api, TestTenant
from books import store
from price_lists import BASE, add_prices, cost_of, post_prices, record_of

HELD = '{"per_million": {"stored": [{"class": "flex", "price": "1"}]}}'
_numbers = itertools.count()


@pytest.fixture
async def payer(api: Api) -> TestTenant:
    return await api.new_tenant("payer")


@pytest.mark.parametrize(
    ("per_million", "param"),
    [
        ({"output": []}, "per_million.output"),
        ({"output": [{"price": "1", "from": 5}]}, "per_million.output"),
        ({"output": [{"price": "1"}, {"price": "2"}]}, "per_million.output"),
        (
            {"output": [{"price": "1"}, {"class": "batch", "price": "2", "from": 1}]},
            "per_million.output",
        ),
        ({"output": [{"price": "-1"}]}, "per_million.output[0].price"),
        ({"output": [{"price": "1", "class": "Not a class"}]}, "per_million.output[0].class"),
        ({"output": [{"price": "1", "from": -1}]}, "per_million.output[0].from"),
        ({"output": [{"price": "1", "from": 2**62}]}, "per_million.output[0].from"),
        ({"output": [{"price": "1", "until": 1}]}, "per_million.output[0].until"),
        ({"device_residency": [{"price": "1", "class": "flex"}]}, "per_million.device_residency"),
        ({"output": "0.0000001"}, "per_million.output[0].price"),
        ({"output": None}, "per_million.output[0].price"),
    ],
)
async def test_bad_prices_are_named(api: Api, per_million: dict[str, Any], param: str) -> None:
    answer = await post_prices(api, model="bad", per_million=BASE | per_million)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("scope", "param"),
    [
        ({"tenant": "nobody"}, "tenant"),
        ({"adapter": "nothing"}, "adapter"),
        ({"minimum": "-1"}, "minimum"),
        ({"included": "0.0000000000001"}, "included"),
        ({"currency": "usd"}, "currency"),
    ],
)
async def test_bad_terms_are_named(api: Api, scope: dict[str, Any], param: str) -> None:
    answer = await post_prices(api, **scope)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_a_list_reads_as_it_was_written(api: Api, payer: TestTenant) -> None:
    output = [
        {"class": None, "from": 0, "price": "0.40"},
        {"class": None, "from": 1000, "price": "0.3"},
        {"class": "batch", "from": 0, "price": "0.000001"},
    ]
    made = await add_prices(
        api,
        model="written",
        tenant=payer.id,
        effective_from="2041-01-01T00:00:00Z",
        per_million=BASE | {"output": [output[2], output[1], output[0]], "cold_load": "1e2"},
        minimum="20",
        included="5.50",
    )
    free = dict.fromkeys(("device_residency", "host_residency", "stored"), "0")
    assert made["per_million"] == BASE | {"output": output, "cold_load": "100"} | free
    listed = (await api.admin("GET", "/admin/v1/prices")).json()["data"]
    found = next(each for each in listed if each["id"] == made["id"])
    assert found["per_million"]["output"][0] == {"class": None, "from": 0, "price": "0.400000"}
    assert found["per_million"]["stored"] == "0.000000"
    assert Decimal(found["minimum"]) == 20
    assert Decimal(found["included"]) == Decimal("5.5")
    assert found["tenant"] == payer.id


async def test_each_class_has_its_price(api: Api, payer: TestTenant) -> None:
    """Of the class that really served. One without a price waits; it can be given one, which
    changes nothing that has been rated."""
    day = datetime(2041, 2, 1, tzinfo=UTC)
    output = [{"class": name, "price": price} for name, price in (("flex", "1"), ("batch", "2"))]
    body = {"model": "classes", "effective_from": day.isoformat()}
    made = await add_prices(api, **body, per_million=BASE | {"output": output})
    at = day + timedelta(hours=1)
    records = [record_of(payer, at, "classes", tier=tier) for tier in ("flex", "batch", "default")]
    await store(api, records)
    assert await cost_of(api, payer, day) == (Decimal("0.00003"), 1)
    later = await post_prices(api, **body, plan="standard")
    assert later.status_code == 409  # for the others have been rated
    path = f"/admin/v1/prices/{made['id']}"
    for entries in ([{"class": "flex", "price": "9"}], [{"price": "9"}, *output]):
        refused = await api.admin("PATCH", path, json={"per_million": {"output": entries}})
        assert refused.status_code == 409, refused.text
        assert refused.json()["error"]["code"] == "price_in_use"
        assert refused.json()["error"]["param"] == "per_million.output"
    mended = await api.admin("PATCH", path, json={"per_million": {"output": "5"}})
    assert mended.status_code == 200, mended.text
    assert mended.json()["per_million"]["output"][0] == {"class": None, "from": 0, "price": "5"}
    assert await cost_of(api, payer, day) == (Decimal("0.00008"), 0)
    again = await api.admin("PATCH", path, json={"per_million": {"output": "5"}})
    assert again.status_code == 409
    batch = {"per_million": {"output": [{"class": "priority", "price": "9"}]}}
    assert (await api.admin("PATCH", path, json=batch)).status_code == 409  # any class has one
    for wrong in ("{}", '{"per_million": {}}', '{"per_million": {"tokens": "1"}}', HELD):
        assert (await api.admin("PATCH", path, content=wrong)).status_code == 400
    gone = await api.admin("PATCH", "/admin/v1/prices/nothing", json=batch)
    assert gone.status_code == 404


async def test_the_most_specific_agreement_is_charged(api: Api) -> None:
    day = datetime(2041, 3, 1, tzinfo=UTC)
    begin = {"effective_from": day.isoformat(), "model": "agreed"}
    one, other = await api.new_tenant("one"), await api.new_tenant("other")
    await add_prices(api, **begin)
    await add_prices(api, **begin, plan="premium", per_million=BASE | {"output": "3"})
    await add_prices(api, **begin, tenant=one.id, per_million=BASE | {"output": "5"})
    for tenant in (one, other):
        plans = ("standard", "premium")
        await store(api, [record_of(tenant, day, "agreed", plan=plan) for plan in plans])
    assert await cost_of(api, one, day) == (Decimal("0.00010"), 0)
    assert await cost_of(api, other, day) == (Decimal("0.00004"), 0)


@pytest.mark.parametrize("scope", ["tenant", "plan", "model"])
async def test_an_agreement_may_not_begin_where_the_general_list_rated(
    api: Api, payer: TestTenant, scope: str
) -> None:
    """Whatever list rated it: a narrower one would have rated it otherwise."""
    day = datetime(2041, 4, 1, tzinfo=UTC) + timedelta(days=next(_numbers))
    model, plan = f"overlap-{scope}", f"plan-{scope}"
    await store(api, [record_of(payer, day, model, plan=plan)])
    own = {"tenant": payer.id, "plan": plan, "model": model}[scope]
    refused = await post_prices(api, effective_from=day.isoformat(), **{scope: own})
    assert refused.status_code == 409, refused.text
    error = refused.json()["error"]
    assert error["code"] == "price_in_rated_period"
    earliest = datetime.fromisoformat(error["earliest_effective_from"])
    assert earliest == day + timedelta(microseconds=1)
    stranger = await api.new_tenant("stranger")
    other = {"tenant": stranger.id, "plan": "elsewhere", "model": f"elsewhere-{scope}"}[scope]
    await add_prices(api, effective_from=day.isoformat(), **{scope: other})
    made = await add_prices(api, effective_from=earliest.isoformat(), **{scope: own})
    await api.admin("DELETE", f"/admin/v1/prices/{made['id']}")


async def own_prices(api: Api, tenant: TestTenant) -> list[dict[str, Any]]:
    answer = await api.call(tenant.key, "GET", "/v1/prices")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def test_a_tenant_sees_its_prices_and_nobody_elses(api: Api) -> None:
    one, other = await api.new_tenant("sees"), await api.new_tenant("blind")
    agreed = await add_prices(api, tenant=one.id, effective_from="2042-01-01T00:00:00Z")
    premium = await add_prices(
        api, plan="premium", model="x", effective_from="2042-01-01T00:00:00Z"
    )
    standard = await add_prices(
        api, plan="standard", model="x", effective_from="2042-01-01T00:00:00Z"
    )
    found = {each["id"]: each for each in await own_prices(api, one)}
    assert found["price_default"]["status"] == "in_force"
    assert found[agreed["id"]]["status"] == "announced"
    assert found[agreed["id"]]["effective_from"] == "2042-01-01T00:00:00Z"
    assert standard["id"] in found
    assert premium["id"] not in found
    seen = {each["id"] for each in await own_prices(api, other)}
    assert agreed["id"] not in seen
    assert {"price_default", standard["id"]} <= seen
    assert one.id not in str(await own_prices(api, other))
    await api.admin("DELETE", f"/admin/v1/prices/{agreed['id']}")
    assert agreed["id"] not in {each["id"] for each in await own_prices(api, one)}


async def test_prices_take_the_scope_usage(api: Api) -> None:
    tenant = await api.new_tenant("narrow", scopes=["inference"])
    answer = await api.call(tenant.key, "GET", "/v1/prices")
    assert answer.status_code == 403
