"""Usage with what it cost, and the greatest groups: beside GET /v1/usage and GET /v1/costs as they
are without."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from api_harness import Api, TestTenant
from priced_adapters import DIGEST, an_adapter
from tenora_engine.events import UsageRecord
from tenora_platform.ids import new_id
from tenora_platform.usage import service
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

NOW = datetime.now(UTC)
UNPRICED = datetime(2001, 1, 1, tzinfo=UTC)  # before there was any price
START = (NOW - timedelta(days=3)).strftime("%Y-%m-%dT00:00:00Z")
ADAPTERS = {"large": 500, "middle": 150, "small": 20, "tiny": 1}
QUERY = f"start={START}&bucket=1d&group_by=adapter"


async def page(api: Api, tenant: TestTenant, path: str) -> dict[str, Any]:
    answer = await api.call(tenant.key, "GET", path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(api: Api, tenant: TestTenant, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await page(api, tenant, path))["data"]
    return found


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    """Four adapters and the base model on three days, in two currencies; one without a price."""
    made = await api.new_tenant()
    old = (NOW - timedelta(days=40)).isoformat()
    tokens = {"uncached_prefill": "1", "cached_prefill": "0.5", "output": "3"}
    for model, currency in (("dollars", "USD"), ("euros", "EUR")):
        body = {
            "model": model,
            "currency": currency,
            "effective_from": old,
            "per_million": tokens,
        }
        assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    sink = UsageSink(api.engine, api.state.db)
    contexts: list[tuple[dict[str, str], int]] = [({}, 7)]
    contexts += [(await an_adapter(api, made, name), size) for name, size in ADAPTERS.items()]
    for days in (0, 1, 2):
        for more, size in contexts:
            for model in ("dollars", "euros") if size == 20 else ("dollars",):
                at = NOW - timedelta(days=days)
                await sink.store([record(made, at, size, {"model": model} | more)])
    await sink.store([record(made, UNPRICED, 5, {"model": "another"})])
    return made


def record(tenant: TestTenant, at: datetime, output: int, context: dict[str, str]) -> UsageRecord:
    end_s = at.timestamp()
    base = {
        "tenant_id": tenant.id,
        "api_key_id": tenant.key_id,
        "plan": "standard",
        "adapter_version_id": "",
    }
    return usage_record(
        f"{new_id('chatcmpl')}:0",
        tenant.id,
        context=base | context,
        output_tokens=output,
        arrival_s=end_s - 1,
        first_token_s=None,
        finished_s=end_s,
        adapter_digest=DIGEST if "adapter_id" in context else None,
    )


async def test_costs_beside_tokens_are_those_of_the_costs(api: Api, tenant: TestTenant) -> None:
    plain = await get(api, tenant, f"/v1/usage?{QUERY}")
    found = await get(api, tenant, f"/v1/usage?{QUERY}&include=costs")
    costs = await get(api, tenant, f"/v1/costs?{QUERY}")
    assert sum(len(bucket["results"]) for bucket in found) == 15
    for bucket, without, cost in zip(found, plain, costs, strict=True):
        assert [{**each, "costs": None} for each in bucket["results"]] == without["results"]
        said = {
            (each["adapter"], amount["currency"]): Decimal(amount["amount"])
            for each in bucket["results"]
            for amount in each["costs"]["amounts"]
        }
        assert said == {
            (each["adapter"], each["currency"]): Decimal(each["amount"]) for each in cost["results"]
        }
        for each in bucket["results"]:
            assert each["costs"]["unrated_events"] == 0
    path = "/v1/usage?start=2001-01-01&bucket=1d&limit=1&include=costs"
    (result,) = (await get(api, tenant, path))[0]["results"]
    assert (result["output_tokens"], result["costs"]["unrated_events"]) == (5, 1)
    assert result["costs"]["amounts"] == []


@pytest.mark.parametrize("by", ["tokens", "cost", "requests"])
async def test_the_greatest_groups_and_the_others_together(
    api: Api, tenant: TestTenant, by: str
) -> None:
    query = f"/v1/usage?{QUERY}&include=costs"
    whole = await get(api, tenant, query)
    found = await get(api, tenant, f"{query}&top=2&top_by={by}")
    kept = {"requests": {"small", None}}.get(by, {"large", "middle"})
    for bucket, every in zip(found, whole, strict=True):
        if not every["results"]:
            assert bucket["results"] == []
            continue
        *most, others = bucket["results"]
        assert (others["others"], others["adapter"]) == (3, None)
        assert all(each["others"] is None for each in most)
        if by != "requests":  # all others have as many
            assert {each["adapter"] for each in most} == kept
        names = [each["adapter"] for each in most]
        assert most == [each for each in every["results"] if each["adapter"] in names]
        for field in ("requests", "output_tokens", "uncached_tokens"):
            assert sum(each[field] for each in bucket["results"]) == sum(
                each[field] for each in every["results"]
            )
        assert amounts(bucket) == amounts(every)
    assert await get(api, tenant, f"{query}&top=5&top_by={by}") == whole, "no others"


COUNTS = (
    "requests",
    "sequences",
    "prompt_tokens",
    "cached_tokens",
    "uncached_tokens",
    "output_tokens",
)


@pytest.mark.parametrize("more", ["", "&top=2&top_by=cost", "&top=1&top_by=tokens"])
async def test_groups_and_their_total_are_the_sums_of_the_buckets(
    api: Api, tenant: TestTenant, more: str
) -> None:
    found = await page(api, tenant, f"/v1/usage?{QUERY}&include=costs{more}")
    by_group: dict[Any, list[dict[str, Any]]] = {}
    for bucket in found["data"]:
        for each in bucket["results"]:
            by_group.setdefault((each["adapter"], each["others"]), []).append(each)
    said = {(each["adapter"], each["others"]): each for each in found["groups"]}
    assert len(said) == len(found["groups"]) == len(by_group)
    for group, parts in by_group.items():
        assert_sums(said[group], parts)
    assert_sums(found["total"], [each for parts in by_group.values() for each in parts])
    by = "output_tokens" if more.endswith("tokens") else None
    weights = [
        each[by] if by else sum(Decimal(amount["amount"]) for amount in each["costs"]["amounts"])
        for each in found["groups"]
        if each["others"] is None and (by or more)
    ]
    assert weights == sorted(weights, reverse=True)
    assert [each["others"] for each in found["groups"][:-1]] == [None] * (len(said) - 1)


async def test_a_page_without_usage_has_an_empty_total(api: Api, tenant: TestTenant) -> None:
    found = await page(api, tenant, "/v1/usage?start=2002-01-01&end=2002-01-05&include=costs")
    assert found["groups"] == []
    assert_sums(found["total"], [])


def assert_sums(said: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    for field in COUNTS:
        assert said[field] == sum(each[field] for each in parts), field
    assert amounts({"results": [said]}) == amounts({"results": parts})
    unrated = sum(each["costs"]["unrated_events"] for each in parts)
    assert said["costs"]["unrated_events"] == unrated


def amounts(bucket: dict[str, Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in bucket["results"]:
        for amount in each["costs"]["amounts"]:
            found[amount["currency"]] += int(Decimal(amount["amount"]) * 10**12)
    return found


@pytest.mark.parametrize(
    ("query", "param"),
    [("top=0", "top"), ("top_by=cost", "top_by"), ("include=all", "include")],
)
async def test_what_it_does_not_take(api: Api, tenant: TestTenant, query: str, param: str) -> None:
    answer = await api.call(tenant.key, "GET", f"/v1/usage?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_the_operator_has_the_same_of_tenants(api: Api, tenant: TestTenant) -> None:
    path = f"/admin/v1/usage?start={START}&bucket=1mo&group_by=tenant&include=costs&top=1"
    found = (await api.admin("GET", path)).json()["data"]
    own = {each["tenant_id"] for bucket in found for each in bucket["results"]}
    assert tenant.id in own


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/costs"])
async def test_a_page_ends_before_it_has_too_many_results(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    whole = await get(api, tenant, f"{path}?{QUERY}")
    monkeypatch.setattr(service, "RESULTS_MAX", 11)  # 5 of each of three days
    first = await page(api, tenant, f"{path}?{QUERY}")
    assert first["has_more"]
    assert sum(bool(bucket["results"]) for bucket in first["data"]) == 2
    last = await page(api, tenant, f"{path}?{QUERY}&page={first['next_page']}")
    assert first["data"] + last["data"] == whole
    assert last["next_page"] is None


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/costs"])
async def test_a_bucket_of_too_many_groups_says_what_they_differ_in(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(service, "RESULTS_MAX", 4)
    query = f"start={START}&bucket=1mo&group_by=model,adapter"
    answer = await api.call(tenant.key, "GET", f"{path}?{query}")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("too_many_groups", "group_by")
    assert "most differ in adapter" in error["message"]
    if path == "/v1/usage":
        found = await page(api, tenant, f"{path}?{query}&top=2")
        assert found["groups"][-1]["others"] > 1
