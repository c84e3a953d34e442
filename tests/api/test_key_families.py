"""Keys that an API key creates: they share its limits, lose what it loses, and end with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api_harness import Api, TestTenant
from tenora_platform.tenants.key_families import LINEAGE_MAX


async def child_of(api: Api, key: str, **body: Any) -> dict[str, Any]:
    made = await api.call(key, "POST", "/v1/api_keys", json=body)
    assert made.status_code == 201, made.text
    return dict(made.json())


async def family(api: Api, **limits: Any) -> tuple[TestTenant, list[str]]:
    """A tenant whose key is limited, and the secrets of that key, two children and a grandchild."""
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    assert (await api.admin("PATCH", path, json={"limits": limits})).status_code == 200
    one, other = await child_of(api, tenant.key), await child_of(api, tenant.key)
    grandchild = await child_of(api, one["key"])
    assert grandchild["created_by"] == f"api_key:{one['id']}"
    return tenant, [tenant.key, one["key"], other["key"], grandchild["key"]]


def chat(api: Api) -> dict[str, Any]:
    message = {"role": "user", "content": "x"}
    return {"model": api.engine.model.id, "messages": [message], "max_tokens": 4}


async def test_a_family_has_its_parents_requests(api: Api) -> None:
    _, keys = await family(api, requests_per_min=4)
    statuses = [
        (await api.call(key, "POST", "/v1/chat/completions", json=chat(api))).status_code
        for key in keys * 2
    ]
    assert statuses == [200] * 4 + [429] * 4


async def test_a_child_may_have_less_and_its_siblings_the_rest(api: Api) -> None:
    tenant, keys = await family(api, requests_per_min=3)
    less = await child_of(api, tenant.key, limits={"requests_per_min": 1})
    order = [less["key"], less["key"], *keys]
    statuses = [
        (await api.call(key, "POST", "/v1/chat/completions", json=chat(api))).status_code
        for key in order
    ]
    assert statuses == [200, 429, 200, 200, 429, 429]
    seen = (await api.call(keys[3], "GET", "/v1/limits")).json()
    assert seen["key"]["requests_per_min"]["remaining"] == 0


async def test_a_family_ends_with_its_parent(api: Api) -> None:
    tenant, keys = await family(api)
    for key in keys:
        assert (await api.call(key, "GET", "/v1/limits")).status_code == 200
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{tenant.key_id}")
    for key in keys:
        refused = await api.call(key, "GET", "/v1/limits")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "key_revoked")
    listed = (await api.admin("GET", f"/admin/v1/tenants/{tenant.id}/api_keys")).json()["data"]
    assert all(each["revoked_at"] for each in listed)


async def test_a_family_loses_what_its_parent_loses(api: Api) -> None:
    tenant, keys = await family(api)
    narrow = await child_of(api, tenant.key, scopes=["inference"])
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    body = {"scopes": ["usage", "keys"], "expires_at": "2099-01-01T00:00:00Z"}
    await api.admin("PATCH", f"{path}/{tenant.key_id}", json=body)
    for key in keys:
        refused = await api.call(key, "POST", "/v1/chat/completions", json=chat(api))
        assert refused.json()["error"]["code"] == "insufficient_scope"
    for each in (await api.admin("GET", path)).json()["data"]:
        if each["id"] == narrow["id"]:
            assert each["revoked_at"], "nothing was left to it"
        else:
            assert sorted(each["scopes"]) == ["keys", "usage"]
            assert each["expires_at"] == "2099-01-01T00:00:00Z"


async def test_a_lineage_is_bounded(api: Api) -> None:
    key = (await api.new_tenant()).key
    for _ in range(LINEAGE_MAX):
        key = (await child_of(api, key))["key"]
    refused = await api.call(key, "POST", "/v1/api_keys", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "key_lineage_too_long")


async def test_a_key_that_is_revoked_meanwhile_creates_none(api: Api) -> None:
    for _ in range(5):
        tenant = await api.new_tenant()
        own = f"/v1/api_keys/{tenant.key_id}"
        made, _ = await asyncio.gather(
            api.call(tenant.key, "POST", "/v1/api_keys", json={}),
            api.call(tenant.key, "DELETE", own),
        )
        if made.status_code == 201:
            refused = await api.call(made.json()["key"], "GET", "/v1/limits")
            assert refused.status_code == 401


@pytest.mark.parametrize("by", ["admin_key", "api_key"])
async def test_lists_say_who_created_a_key(api: Api, by: str) -> None:
    tenant = await api.new_tenant()
    made = await child_of(api, tenant.key)
    listed = (await api.call(tenant.key, "GET", "/v1/api_keys")).json()["data"]
    makers = {each["id"]: each["created_by"] for each in listed}
    assert makers[made["id"]] == f"api_key:{tenant.key_id}"
    assert makers[tenant.key_id].startswith("admin_key:")
