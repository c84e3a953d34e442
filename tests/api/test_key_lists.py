"""Lists of keys, deliveries and endpoints as a page of them asks: searched, sorted, page by page,
each row once, and nobody else's. And what a tenant has stored, beside its limits."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from adapter_files import adapter_form
from api_harness import ADMIN_KEY, Api, TestTenant
from tenora_platform.ids import new_id

NAMES = ["Zeta", "alpha", "Beta 100%", "beta_2", "ALPHA", "omega"]


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    """With keys of these names, some ended, some used."""
    made = await api.new_tenant()
    other = await api.new_tenant()
    await api.call(other.key, "POST", "/v1/api_keys", json={"name": "alpha"})
    for name in NAMES:
        await api.call(made.key, "POST", "/v1/api_keys", json={"name": name})
    async with api.state.db.admin_session() as session:
        for name, column, days in (
            ("alpha", "last_used_at", -3),
            ("omega", "last_used_at", -9),
            ("Zeta", "revoked_at", -1),
            ("beta_2", "expires_at", -1),
            ("ALPHA", "expires_at", 1),
        ):
            await session.execute(
                text(f"update api_keys set {column} = :at where tenant_id = :t and name = :n"),
                {"at": datetime.now(UTC) + timedelta(days=days), "t": made.id, "n": name},
            )
    return made


async def listed(api: Api, key: str, path: str, **query: str) -> list[dict[str, Any]]:
    """Every row, page after page of two."""
    rows: list[dict[str, Any]] = []
    query["limit"] = "2"
    while True:
        answer = await api.call(key, "GET", path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        rows += page["data"]
        if not page["has_more"]:
            return rows
        query["after"] = page["last_id"]


async def names(api: Api, tenant: TestTenant, **query: str) -> list[str]:
    own = await listed(api, tenant.key, "/v1/api_keys", **query)
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    assert await listed(api, ADMIN_KEY, path, **query) == own
    return [each["name"] for each in own]


async def test_keys_are_searched(api: Api, tenant: TestTenant) -> None:
    assert sorted(await names(api, tenant, q="ALPHA")) == ["ALPHA", "alpha"]
    assert await names(api, tenant, q="100%") == ["Beta 100%"]
    assert await names(api, tenant, q="a_") == ["beta_2"]
    whole = (await api.call(tenant.key, "GET", "/v1/api_keys")).json()["data"]
    for field in ("prefix", "id"):
        assert await names(api, tenant, q=whole[2][field]) == [whole[2]["name"]]
    assert await names(api, tenant, q=whole[0]["id"], state="ended") == []


async def test_keys_are_told_apart_by_whether_they_are_over(api: Api, tenant: TestTenant) -> None:
    assert await names(api, tenant, state="ended") == ["beta_2", "Zeta"]
    active = await names(api, tenant, state="active")
    assert len(active) == 5
    assert not {"beta_2", "Zeta"} & set(active)


@pytest.mark.parametrize("by", ["name", "last_used", "created"])
async def test_keys_are_sorted(api: Api, tenant: TestTenant, by: str) -> None:
    """By what it says; those that are equal by when they were made."""
    whole = await listed(api, tenant.key, "/v1/api_keys")
    random.Random(1).shuffle(whole)
    column = {"name": "name", "last_used": "last_used_at", "created": "id"}[by]
    expected = sorted(whole, key=lambda each: (str(each[column] or "").lower(), each["id"]))
    ids = [each["id"] for each in expected]
    for sort, wanted in ((by, ids), (f"-{by}", ids[::-1])):
        found = await listed(api, tenant.key, "/v1/api_keys", sort=sort)
        assert [each["id"] for each in found] == wanted


async def test_a_bad_sort_is_refused_by_name(api: Api, tenant: TestTenant) -> None:
    for query in ("sort=secret", "state=old", "q=", f"q={'x' * 201}"):
        answer = await api.call(tenant.key, "GET", f"/v1/api_keys?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["error"]["param"] == query.partition("=")[0]


async def delivery(api: Api, endpoint: str, tenant_id: str, type: str, **values: Any) -> str:
    """Of an event that has just happened; its id."""
    ids = {"id": new_id("delivery"), "event": new_id("evt")}
    async with api.state.db.tenant_session(tenant_id) as session:
        await session.execute(
            text(
                "insert into events (id, tenant_id, type, once, data)"
                " values (:event, :tenant, :type, :event, '{}')"
            ),
            {"event": ids["event"], "tenant": tenant_id, "type": type},
        )
        await session.execute(
            text(
                "insert into webhook_deliveries"
                " (id, event_id, endpoint_id, tenant_id, state, last_error)"
                " values (:id, :event, :endpoint, :tenant, :state, :error)"
            ),
            ids
            | {
                "endpoint": endpoint,
                "tenant": tenant_id,
                "state": values.get("state", "delivered"),
                "error": values.get("error"),
            },
        )
    await asyncio.sleep(0.002)  # ids of one millisecond sort by chance
    return ids["id"]


async def test_deliveries_are_searched(api: Api) -> None:
    tenant = await api.new_tenant()
    url = "https://hooks.example.com/tenora"
    made = (await api.call(tenant.key, "POST", "/v1/webhook_endpoints", json={"url": url})).json()
    path = f"/v1/webhook_endpoints/{made['id']}/deliveries"
    final = await delivery(api, made["id"], tenant.id, "invoice.final")
    dead = await delivery(
        api, made["id"], tenant.id, "budget.soft", state="dead", error="status 503: Busy"
    )
    soft = await delivery(api, made["id"], tenant.id, "budget.soft")

    async def ids(**query: str) -> list[str]:
        return [each["id"] for each in await listed(api, tenant.key, path, **query)]

    assert await ids() == [soft, dead, final]
    assert await ids(order="asc") == [final, dead, soft]
    assert await ids(type="budget.soft") == [soft, dead]
    assert await ids(type="budget") == []
    assert await ids(q="budget") == [soft, dead]
    assert await ids(q="busy") == [dead]
    assert await ids(q=final) == [final]
    assert await ids(q="budget", state="delivered", order="asc") == [soft]
    other = await api.new_tenant()
    assert (await api.call(other.key, "GET", f"{path}?q=busy")).status_code == 404


async def test_endpoints_are_searched(api: Api) -> None:
    tenant = await api.new_tenant()
    for host, about in (("a.example.com", "for Ops"), ("b.example.com", "")):
        body = {"url": f"https://{host}/", "description": about}
        await api.call(tenant.key, "POST", "/v1/webhook_endpoints", json=body)
    for part, hosts in (("OPS", ["a"]), ("b.example", ["b"]), ("example", ["b", "a"]), ("%", [])):
        found = await listed(api, tenant.key, "/v1/webhook_endpoints", q=part)
        assert [each["url"][8] for each in found] == hosts


async def test_limits_say_what_is_stored(api: Api) -> None:
    tenant = await api.new_tenant()
    empty = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert (empty["adapters_used"], empty["adapter_bytes_used"]) == (0, 0)
    form = adapter_form(api.engine.model, "stored")
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=form)
    assert made.status_code == 202, made.text
    path = "/v1/adapters/stored/versions/1"
    async with asyncio.timeout(20):
        while True:
            version = (await api.call(tenant.key, "GET", path)).json()
            if version["state"] == "active":
                break
            await asyncio.sleep(0.05)
    full = (await api.call(tenant.key, "GET", "/v1/limits")).json()
    assert full["adapters_used"] == 1
    assert full["adapter_bytes_used"] == version["bytes"] > 0
