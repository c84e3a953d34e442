"""Plans, tenants and keys as the operator and the tenant handle them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from api_harness import Api


async def test_a_tenant_is_made_read_changed_and_listed(api: Api) -> None:
    made = await api.admin("POST", "/admin/v1/tenants", json={"name": "Acme", "plan": "free"})
    assert made.status_code == 201
    tenant = made.json()
    assert tenant["object"] == "tenant"
    assert (tenant["name"], tenant["plan"], tenant["status"]) == ("Acme", "free", "active")

    path = f"/admin/v1/tenants/{tenant['id']}"
    assert (await api.admin("GET", path)).json() == tenant
    changed = await api.admin("PATCH", path, json={"plan": "premium", "trust_group": "family"})
    assert changed.status_code == 200
    assert changed.json()["plan"] == "premium"
    assert changed.json()["trust_group"] == "family"
    assert changed.json()["name"] == "Acme"
    assert (await api.admin("PATCH", path, json={"trust_group": None})).json()[
        "trust_group"
    ] is None

    other = (await api.admin("POST", "/admin/v1/tenants", json={"name": "Acme"})).json()
    assert other["id"] != tenant["id"], "a name is a label"
    first = (await api.admin("GET", "/admin/v1/tenants?limit=1")).json()
    assert [row["id"] for row in first["data"]] == [other["id"]]
    assert first["has_more"] is True
    rest = (await api.admin("GET", f"/admin/v1/tenants?after={first['last_id']}")).json()
    assert rest["data"][0]["id"] == tenant["id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x", "plan": "gold"}, "plan"),
        ({"name": "x", "plans": "free"}, "plans"),
        ({"name": 7}, "name"),
    ],
)
async def test_bad_tenants_are_refused_by_field(
    api: Api, body: dict[str, object], param: str
) -> None:
    answer = await api.admin("POST", "/admin/v1/tenants", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_tenant_has_no_null_name(api: Api) -> None:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}"
    for body in ({"name": None}, {"status": None}, {"status": "gone"}, {"plan": "gold"}):
        answer = await api.admin("PATCH", path, json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == next(iter(body))


async def test_unknown_tenants_are_404(api: Api) -> None:
    for method, path in (
        ("GET", "/admin/v1/tenants/tenant_x"),
        ("PATCH", "/admin/v1/tenants/tenant_x"),
        ("POST", "/admin/v1/tenants/tenant_x/api_keys"),
        ("GET", "/admin/v1/tenants/tenant_x/api_keys"),
        ("DELETE", "/admin/v1/tenants/tenant_x/api_keys/key_x"),
    ):
        more: dict[str, object] = {"json": {}} if method == "PATCH" else {}
        assert (await api.admin(method, path, **more)).status_code == 404, path


async def test_plans_come_with_the_first_start_and_are_replaced_whole(api: Api) -> None:
    plans = {
        plan["name"]: plan for plan in (await api.admin("GET", "/admin/v1/plans")).json()["data"]
    }
    assert {"free", "standard", "premium"} <= plans.keys()
    body = {
        "sla_class": "priority",
        "ttft_ms": 250,
        "tpot_ms": 40.5,
        "late": "relegate",
        "weight": 2,
        "memory_share": 0.25,
        "limits": {"requests_per_min": 10, "adapter_bytes": 5_000_000_000, "budget": "12.5"},
    }
    made = await api.admin("PUT", "/admin/v1/plans/gold", json=body)
    assert made.status_code == 200, made.text
    plan = made.json()
    assert plan["tiers"] == ["priority", "default", "flex"]
    assert plan["limits"]["adapter_bytes"] == 5_000_000_000
    assert isinstance(plan["limits"]["budget"], str), "money never travels as a float"
    assert Decimal(plan["limits"]["budget"]) == Decimal("12.5")
    assert plan["limits"]["tokens_per_min"] is None
    again = (await api.admin("PUT", "/admin/v1/plans/gold", json={"sla_class": "flex"})).json()
    assert again["tiers"] == ["flex"]
    assert again["ttft_ms"] is None
    assert (plan["late"], again["late"]) == ("relegate", "best_effort")
    assert again["limits"]["budget"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weight": 0}, "weight"),
        ({"sla_class": "gold"}, "sla_class"),
        ({"late": "never"}, "late"),
        ({"limits": {"requests_per_min": -1}}, "limits.requests_per_min"),
        ({"limits": {"rpm": 5}}, "limits.rpm"),
        ({"memory_share": 2}, "memory_share"),
        ({"sla_class": "priority", "tiers": ["flex"]}, None),
        ({"tiers": ["gold"]}, "tiers[0]"),
    ],
)
async def test_bad_plans_are_refused_by_field(
    api: Api, body: dict[str, object], param: str | None
) -> None:
    answer = await api.admin("PUT", "/admin/v1/plans/odd", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
