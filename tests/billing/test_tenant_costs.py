"""The operator's lists of tenants, plans, prices, invoices and accounts: paged, sorted and searched
by the server, money by currency, each number that of /admin/v1/costs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from api_harness import Api, TestTenant
from price_lists import add_prices, record_of
from tenora_platform.usage.sink import UsageSink

NOW = datetime.now(UTC)
MONTH = f"{NOW:%Y-%m}"
FIRST = NOW.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
_names = itertools.count(1)


@pytest.fixture(scope="module")
async def family(api: Api) -> list[TestTenant]:
    """Four tenants called Vier..., the second with a list of its own in EUR, and what they used: of
    the first the most, of the last nothing."""
    made = [await api.new_tenant(f"Vier {name}") for name in ("ant", "Bee", "cat", "dog")]
    model = "priced-by-list"
    begin = (FIRST - timedelta(days=40)).isoformat()
    await add_prices(api, model=model, effective_from=begin)
    own = {"tenant": made[1].id, "model": model, "currency": "EUR", "effective_from": begin}
    await add_prices(api, **own)
    for tenant, sequences in zip(made[:3], (3, 2, 1), strict=True):
        records = [record_of(tenant, NOW, model) for _ in range(sequences)]
        records.append(record_of(tenant, FIRST - timedelta(days=3), model))
        await UsageSink(api.engine, api.state.db).store(records)
    return made


async def pages(api: Api, path: str, limit: int = 1) -> list[dict[str, Any]]:
    """All of a list, page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        answer = await api.admin("GET", f"{path}&limit={limit}{after}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["data"]) <= limit
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


async def cost_of(api: Api, tenant: TestTenant, bucket: str = "1mo") -> dict[str, Decimal]:
    """What /admin/v1/costs says of this month, by currency."""
    path = f"/admin/v1/costs?tenant={tenant.id}&bucket={bucket}"
    answer = (await api.admin("GET", path)).json()
    total: dict[str, Decimal] = defaultdict(Decimal)
    for of_bucket in answer["data"]:
        for result in of_bucket["results"]:
            total[result["currency"]] += Decimal(result["amount"])
    return dict(total)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("name", "ant Bee cat dog"),
        ("-name", "dog cat Bee ant"),
        ("created", "ant Bee cat dog"),
        ("-created", "dog cat Bee ant"),
        ("-requests", "ant Bee cat dog"),
        ("requests", "dog cat Bee ant"),
        ("-spend", "ant cat dog Bee"),  # in USD; of equals the later id first
        ("-spend&currency=EUR", "Bee dog cat ant"),
    ],
)
async def test_tenants_are_sorted_and_paged_by_the_server(
    api: Api, family: list[TestTenant], sort: str, expected: str
) -> None:
    found = await pages(api, f"/admin/v1/tenants?q=vier%20&sort={sort}")
    assert " ".join(each["name"].removeprefix("Vier ") for each in found) == expected


async def test_a_tenants_numbers_are_those_of_its_costs(api: Api, family: list[TestTenant]) -> None:
    listed = {each["id"]: each for each in await pages(api, "/admin/v1/tenants?q=vier", 100)}
    for tenant, currency, requests in zip(
        family, ("USD", "EUR", "USD", ""), (3, 2, 1, 0), strict=True
    ):
        shown = {of: Decimal(amount) for of, amount in listed[tenant.id]["spend_month"].items()}
        assert shown == await cost_of(api, tenant)
        assert shown == ({currency: Decimal(requests) / 10**5} if currency else {})
        assert listed[tenant.id]["requests_today"] == requests
        assert listed[tenant.id]["unrated_events"] == 0


async def test_a_search_takes_signs_as_they_are(api: Api) -> None:
    name = "100%_sure"
    tenant = await api.new_tenant(name)
    await api.new_tenant("100 or so sure")
    found = await api.admin("GET", "/admin/v1/tenants", params={"q": "0%_S"})
    assert [each["id"] for each in found.json()["data"]] == [tenant.id]
    assert found.json()["total"] == 1
    by_id = await api.admin("GET", "/admin/v1/tenants", params={"q": tenant.id[-9:].lower()})
    assert [each["name"] for each in by_id.json()["data"]] == [name]


async def test_status_and_plan_filter_and_total_counts_all_pages(api: Api) -> None:
    await api.put_plan("filtered", {})
    made = [await api.new_tenant(f"f{number}", "filtered") for number in range(3)]
    await api.admin("PATCH", f"/admin/v1/tenants/{made[1].id}", json={"status": "suspended"})
    page = (await api.admin("GET", "/admin/v1/tenants?plan=filtered&limit=1")).json()
    assert (page["total"], page["has_more"]) == (3, True)
    page = (await api.admin("GET", "/admin/v1/tenants?plan=filtered&status=suspended")).json()
    assert [each["id"] for each in page["data"]] == [made[1].id]
    plan = (await api.admin("GET", "/admin/v1/plans?q=filtere")).json()["data"]
    assert [(each["name"], each["tenants"], each["tenants_suspended"]) for each in plan] == [
        ("filtered", 3, 1)
    ]
    every = await pages(api, "/admin/v1/plans?sort=-tenants")
    assert sorted(every, key=lambda each: -each["tenants"]) == every
    assert len(every) == len((await api.admin("GET", "/admin/v1/plans")).json()["data"])


async def test_costs_by_tenant_have_days_and_a_forecast(api: Api, family: list[TestTenant]) -> None:
    path = f"/admin/v1/costs/tenants?q=vier&month={MONTH}&sort=name"
    rows = await pages(api, path, 2)
    assert [row["id"] for row in rows] == [tenant.id for tenant in family]
    first = rows[0]["costs"]
    assert [cost["currency"] for cost in first] == ["USD"]
    assert len(first[0]["days"]) == NOW.day
    assert sum(map(Decimal, first[0]["days"])) == Decimal(first[0]["amount"]) == Decimal("0.00003")
    assert rows[1]["costs"][0]["currency"] == "EUR"
    assert rows[3]["costs"] == []
    alone = (await api.admin("GET", f"/admin/v1/costs/tenants?tenant={family[0].id}")).json()
    assert (alone["data"], alone["total"]) == ([rows[0]], 1)


async def test_a_forecast_is_that_of_the_tenant_alone(api: Api, family: list[TestTenant]) -> None:
    tenant = await api.new_tenant("foreseen")
    records = [
        record_of(tenant, NOW - timedelta(days=days), "priced-by-list") for days in (0, 1, 1, 2, 3)
    ]
    await UsageSink(api.engine, api.state.db).store(records)
    path = f"/admin/v1/costs/tenants?tenant={tenant.id}"
    row = (await api.admin("GET", path)).json()["data"][0]["costs"][0]
    alone = (await api.admin("GET", f"/admin/v1/forecast?tenant={tenant.id}")).json()["currencies"][
        0
    ]
    assert row["amount"] == alone["spent"]
    assert row["forecast"]["full_days"] == alone["full_days"] == 3
    for bound in ("projected", "low", "high"):  # as the clock goes on, less is left of the month
        near = Decimal(alone[bound])
        assert abs(Decimal(row["forecast"][bound]) - near) <= near * Decimal("0.001"), bound
    before = f"{FIRST - timedelta(days=1):%Y-%m}"
    past = (await api.admin("GET", f"{path.split('?')[0]}?q=vier&month={before}")).json()["data"]
    costs = [cost for each in past for cost in each["costs"]]
    assert len(costs) == 3
    for cost in costs:
        assert cost["forecast"] is None
        assert len(cost["days"]) == (FIRST - timedelta(days=1)).day


async def test_a_plans_budget_is_beside_the_spend_in_its_lists_currency(api: Api) -> None:
    await api.put_plan("capped", {"budget": "50", "budget_soft": 0.8})
    tenant = await api.new_tenant("capped one", "capped")
    await add_prices(api, tenant=tenant.id, currency="CHF")
    row = (await api.admin("GET", f"/admin/v1/costs/tenants?tenant={tenant.id}")).json()["data"][0]
    assert Decimal(row["budget"].pop("amount")) == 50
    assert row["budget"] == {"currency": "CHF", "soft": 0.8, "action": "refuse"}


async def test_a_name_that_is_taken_is_said_or_refused(api: Api) -> None:
    name = f"Same {next(_names)}"
    first = await api.new_tenant(name)
    body = {"name": name.upper(), "plan": "free"}
    refused = await api.admin(
        "POST", "/admin/v1/tenants", json={**body, "if_name_exists": "refuse"}
    )
    assert refused.status_code == 409
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("tenant_name_exists", "name")
    assert error["tenants"] == first.id
    assert first.id in error["message"]
    second = await api.admin("POST", "/admin/v1/tenants", json=body)
    assert second.status_code == 201, "a name is a label"
    assert first.id in second.headers["x-tenora-warning"]
    assert second.json()["id"] not in second.headers["x-tenora-warning"]
    fresh = {"name": f"{name} other", "if_name_exists": "refuse"}
    made = await api.admin("POST", "/admin/v1/tenants", json=fresh)
    assert made.status_code == 201
    assert "x-tenora-warning" not in made.headers


async def test_price_lists_are_found_by_whom_they_are_for_and_paged(
    api: Api, family: list[TestTenant]
) -> None:
    for _ in range(2):
        await add_prices(api, tenant=family[3].id)
    ahead = (NOW + timedelta(days=9)).isoformat()
    await add_prices(api, tenant=family[3].id, effective_from=ahead)
    path = "/admin/v1/prices?q=vier%20DOG"
    found = await pages(api, path)
    assert [each["status"] for each in found] == ["ended", "in_force", "announced"]
    assert {each["tenant_name"] for each in found} == {"Vier dog"}
    newest = await pages(api, f"{path}&sort=-effective_from", 2)
    assert newest == found[::-1]
    announced = await pages(api, f"/admin/v1/prices?tenant={family[3].id}&status=announced")
    assert announced == found[2:]
    assert len({each["no"] for each in found}) == 3
    every = (await api.admin("GET", "/admin/v1/prices")).json()
    assert {each["id"] for each in found} < {each["id"] for each in every["data"]}
    assert every["has_more"] is False


async def test_a_preview_is_paged_by_tenant_and_names_them(
    api: Api, family: list[TestTenant]
) -> None:
    zero = dict.fromkeys(("uncached_prefill", "cached_prefill", "output"), "0")
    body = {"per_million": zero, "model": "priced-by-list", "month": MONTH}
    whole = (await api.admin("POST", "/admin/v1/prices/preview", json=body)).json()
    first = (await api.admin("POST", "/admin/v1/prices/preview?limit=2", json=body)).json()
    last = first["data"][-1]["tenant"]
    rest = await api.admin("POST", f"/admin/v1/prices/preview?limit=999&after={last}", json=body)
    assert first["has_more"] is True
    assert first["data"] + rest.json()["data"] == whole["data"]
    assert first["before"] == rest.json()["before"] == whole["before"]
    names = {each["tenant"]: each["tenant_name"] for each in whole["data"]}
    assert names[family[0].id] == "Vier ant"


async def test_invoices_are_searched_and_sorted(api: Api, family: list[TestTenant]) -> None:
    for tenant in family[:3]:
        body = {"tenant": tenant.id, "period": MONTH, "draft": True}
        assert (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()["made"] == 1
    found = await pages(api, "/admin/v1/invoices?q=vier&sort=created")
    assert [each["tenant_name"] for each in found] == ["Vier ant", "Vier Bee", "Vier cat"]
    totals = await pages(api, "/admin/v1/invoices?q=vier&sort=total")
    assert [each["currency"] for each in totals] == ["EUR", "USD", "USD"]
    numbers = await pages(api, "/admin/v1/invoices?q=vier&sort=-number", 2)
    assert len(numbers) == 3
    due = await pages(api, "/admin/v1/invoices?q=vier&sort=due", 2)
    assert {each["id"] for each in due} == {each["id"] for each in found}


async def test_credit_and_accounts_are_listed_over_all_tenants(
    api: Api, family: list[TestTenant]
) -> None:
    for tenant, currency in zip(family[2:], ("USD", "EUR"), strict=True):
        body = {"amount": "12.5", "currency": currency, "note": "four of them"}
        path = f"/admin/v1/tenants/{tenant.id}/credits"
        assert (await api.admin("POST", path, json=body)).status_code == 201
    grants = await pages(api, "/admin/v1/credits?q=vier")
    assert [each["tenant_name"] for each in grants] == ["Vier dog", "Vier cat"]
    path = "/admin/v1/ledger/accounts?account=credit:granted&q=vier"
    accounts = await pages(api, path)
    assert [(each["currency"], each["tenant_name"]) for each in accounts] == [
        ("USD", "Vier cat"),
        ("EUR", "Vier dog"),
    ]
    totals = (await api.admin("GET", path)).json()["totals"]
    # A liability grows downwards.
    assert {of: Decimal(amount) for of, amount in totals.items()} == {
        "EUR": Decimal("-12.5"),
        "USD": Decimal("-12.5"),
    }
    bad = await api.admin("GET", "/admin/v1/ledger/accounts?account=gold")
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "account")
