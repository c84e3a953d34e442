"""Numbers and truth values in management's bodies are what JSON calls so, in every body."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import tenora_platform
from api_harness import Api, TestTenant
from tenora_platform.schemas import Body


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/settings", {"keep_contents_days": True}, "keep_contents_days"),
        ("/v1/settings", {"stored_response_days": "1_0"}, "stored_response_days"),
        ("/v1/settings", {"draft_from_answers": "yes"}, "draft_from_answers"),
        ("/v1/settings", {"delete_kept_contents": 1}, "delete_kept_contents"),
    ],
)
async def test_no_other_value_is_taken_for_one(
    api: Api, tenant: TestTenant, path: str, body: dict[str, Any], param: str
) -> None:
    answer = await api.call(tenant.key, "PATCH", path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("number", ["1_0", "\uff11\uff12", "\u0661"])
async def test_costs_in_a_query_are_written_plainly(
    api: Api, tenant: TestTenant, number: str
) -> None:
    for name in ("min_cost", "max_cost"):
        answer = await api.call(tenant.key, "GET", "/v1/requests", params={name: number})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("number", ["1_0", "\uff11\uff12", "\u0661"])
async def test_a_decimal_is_written_plainly(api: Api, tenant: TestTenant, number: str) -> None:
    budget = await api.call(tenant.key, "PUT", "/v1/budget", json={"amount": number})
    assert (budget.status_code, budget.json()["error"]["param"]) == (400, "amount")
    key = {"name": "x", "limits": {"budget": number}}
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    assert (await api.admin("POST", path, json=key)).status_code == 400
    prices = {"uncached_prefill": "1", "cached_prefill": "1", "output": number}
    body = {"currency": "EUR", "per_million": prices}
    answer = await api.admin("POST", "/admin/v1/prices", json=body)
    assert answer.status_code == 400
    assert "must be a decimal number" in answer.json()["error"]["message"]


def lax(schema: Any) -> Iterator[Any]:
    if isinstance(schema, list | tuple):
        schema = dict(enumerate(schema))
    if not isinstance(schema, dict):
        return
    if schema.get("type") in ("int", "float", "bool") and not schema.get("strict"):
        yield schema
    for each in schema.values():
        yield from lax(each)


def bodies(kind: type[Body]) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from bodies(each)


def test_all_bodies_are_strict() -> None:
    for module in pkgutil.walk_packages(tenora_platform.__path__, "tenora_platform."):
        if module.name.endswith(".schemas"):
            importlib.import_module(module.name)
    found = list(bodies(Body))
    assert len(found) > 40
    assert [each.__name__ for each in found if any(lax(each.__pydantic_core_schema__))] == []
