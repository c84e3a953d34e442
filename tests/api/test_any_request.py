"""Whatever one tenant or the operator sends, by the fields of the OpenAPI document: no answer is a
500, and afterwards another tenant is answered and billed, and `/readyz` says so."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_harness import ADMIN_KEY, Api, TestTenant
from described import document
from odd_requests import Operation, operations, requests

OPERATIONS = [each for each in operations(document()) if not each.path.startswith("/metrics")]
_numbers = itertools.count()


@pytest.fixture(scope="module")
async def other(api: Api) -> TestTenant:
    """Who must not notice, on a plan that nobody touches."""
    await api.put_plan("quiet", {})
    return await api.new_tenant("other", "quiet")


@pytest.fixture(scope="module")
def odds() -> dict[str, TestTenant]:
    """Who sends an operation's requests, by its name."""
    return {}


async def known_values(api: Api, odd: TestTenant, operation: Operation) -> Mapping[str, list[str]]:
    """So that more than the first check is reached."""
    prices = []
    if "/prices" in operation.path:
        prices = (await api.admin("GET", "/admin/v1/prices")).json()["data"]
    return {
        "tenant_id": [odd.id],
        "tenant": [odd.id],
        "key_id": [odd.key_id],
        "name": ["odd", "free"],
        "version": ["1"],
        "version_id": [price["id"] for price in prices],
        "alias": ["prod"],
        "model": ["fake-base", "odd"],
        "plan": ["standard", "free"],
        "currency": ["USD"],
        "role": ["user", "system"],
        "content": ["Hi"],
        "prompt": ["Hi"],
        "weight": [100],
        "upload_id": ["upload_1"],
        "group_by": ["model", "api_key,adapter"],
    }


async def ask(api: Api, key: str, operation: Operation, request: dict[str, object]) -> None:
    try:
        answer = await api.call(key, operation.method, **request)  # type: ignore[arg-type]
    except httpx.InvalidURL:
        return  # the client does not send it
    assert answer.status_code < 500, f"{operation} {request}: {answer.text[:500]}"
    if answer.status_code >= 400:
        assert answer.json()["error"].keys() >= {"message", "type", "param", "code"}


@pytest.fixture
async def undisturbed(api: Api, other: TestTenant) -> AsyncIterator[None]:
    """After all requests of a test."""
    yield
    await check_other(api, other)


async def check_other(api: Api, other: TestTenant) -> None:
    body = {"model": "fake-base", "prompt": "Hi", "max_tokens": 4}
    answer = await api.call(other.key, "POST", "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    ready = await api.http.get("/readyz")
    assert ready.status_code == 200, ready.text


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_any_request(
    api: Api,
    undisturbed: None,
    odds: dict[str, TestTenant],
    operation: Operation,
    data: st.DataObject,
) -> None:
    if operation.method in ("DELETE", "PATCH") or str(operation) not in odds:
        odds[str(operation)] = await api.new_tenant(f"odd-{next(_numbers)}")
    odd = odds[str(operation)]
    request = data.draw(requests(operation, await known_values(api, odd, operation)))
    key = ADMIN_KEY if operation.path.startswith("/admin") else odd.key
    await ask(api, key, operation, {"path": request.pop("url"), **request})


async def test_the_other_was_billed_all_along(api: Api, other: TestTenant) -> None:
    """The last of this module: billing goes on after all of it."""
    before = await billed(api, other)
    await check_other(api, other)
    async with asyncio.timeout(30):
        while await billed(api, other) <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def billed(api: Api, tenant: TestTenant) -> int:
    """Output tokens that have their price."""
    page = (await api.call(tenant.key, "GET", "/v1/costs")).json()
    meters = [m for bucket in page["data"] for each in bucket["results"] for m in each["meters"]]
    return sum(meter["quantity"] for meter in meters if meter["meter"] == "output")
