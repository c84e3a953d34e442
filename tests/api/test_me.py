"""`GET /v1/me` tells any valid key whose it is, and a key that is not valid nothing."""

from __future__ import annotations

import pytest

from api_harness import ADMIN_KEY, Api
from tenora_platform.auth import SCOPES
from tenora_platform.operators.roles import ROLES


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_tenants_key(api: Api, scope: str) -> None:
    limits = {"requests_per_min": 5, "budget": "1.50"}
    await api.put_plan("known", {"tokens_per_min": 77})
    tenant = await api.new_tenant(
        "Acme", "known", scopes=[scope], models=["a"], limits=limits, expires_at="2199-01-01T00:00Z"
    )
    me = (await api.call(tenant.key, "GET", "/v1/me")).json()
    assert (me["object"], me["type"], me["roles"]) == ("me", "api_key", [])
    assert me["tenant"] == {"id": tenant.id, "name": "Acme"}
    assert me["scopes"] == [scope]
    assert me["secret_prefix"] == me["key"]["prefix"] == tenant.key.split("_")[1]
    assert me["plan"]["name"] == "known"
    assert me["plan"]["limits"]["tokens_per_min"] == 77
    key = me["key"]
    assert (key["id"], key["name"], key["models"]) == (tenant.key_id, "test", ["a"])
    assert key["limits"]["requests_per_min"] == 5
    assert key["expires_at"].startswith("2199")
    assert tenant.key not in str(me)


async def test_the_secret_in_use_is_named(api: Api) -> None:
    tenant = await api.new_tenant()
    new = (await api.call(tenant.key, "POST", f"/v1/api_keys/{tenant.key_id}/rotate")).json()
    for key in (tenant.key, new["key"]):
        me = (await api.call(key, "GET", "/v1/me")).json()
        assert me["secret_prefix"] == key.split("_")[1]
        assert me["key"]["prefix"] == new["prefix"]


@pytest.mark.parametrize("role", ROLES)
async def test_an_admin_key(api: Api, role: str) -> None:
    made = (await api.admin("POST", "/admin/v1/admin_keys", json={"role": role})).json()
    me = (await api.call(made["key"], "GET", "/v1/me")).json()
    assert (me["type"], me["tenant"], me["plan"], me["scopes"]) == ("admin_key", None, None, [])
    assert me["roles"] == [role]
    assert (me["key"]["id"], me["secret_prefix"]) == (made["id"], made["prefix"])


async def test_the_configured_admin_key(api: Api) -> None:
    me = (await api.call(ADMIN_KEY, "GET", "/v1/me")).json()
    assert (me["roles"], me["key"]["source"], me["secret_prefix"]) == (
        ["owner"],
        "configured",
        None,
    )


async def test_an_ended_key(api: Api) -> None:
    tenant = await api.new_tenant()
    assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 200
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{tenant.key_id}")
    assert (await api.call(tenant.key, "GET", "/v1/me")).status_code == 401
