"""A tenant's own keys: shown once, listed without the secret, limited by scope, never another's."""

from __future__ import annotations

from api_harness import Api


async def test_the_secret_appears_once(api: Api) -> None:
    tenant = await api.new_tenant()
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "ci"})
    assert made.status_code == 201
    new = made.json()
    assert new["key"].startswith(f"tn_{new['prefix']}_")
    assert (await api.call(new["key"], "GET", "/v1/limits")).status_code == 200
    listed = await api.call(tenant.key, "GET", "/v1/api_keys")
    assert new["key"] not in listed.text
    assert {row["id"] for row in listed.json()["data"]} == {tenant.key_id, new["id"]}
    by_operator = await api.admin("GET", f"/admin/v1/tenants/{tenant.id}/api_keys")
    assert by_operator.json() == listed.json()


async def test_a_body_is_not_needed(api: Api) -> None:
    tenant = await api.new_tenant()
    assert (await api.call(tenant.key, "POST", "/v1/api_keys")).status_code == 201


async def test_rotation_overlaps(api: Api) -> None:
    tenant = await api.new_tenant()
    new = (await api.call(tenant.key, "POST", "/v1/api_keys", json={})).json()
    for key in (tenant.key, new["key"]):
        assert (await api.call(key, "GET", "/v1/limits")).status_code == 200
    gone = await api.call(new["key"], "DELETE", f"/v1/api_keys/{tenant.key_id}")
    assert gone.json() == {"id": tenant.key_id, "object": "api_key", "deleted": True}
    assert (await api.call(tenant.key, "GET", "/v1/limits")).status_code == 401
    assert (await api.call(new["key"], "GET", "/v1/limits")).status_code == 200
    again = await api.call(new["key"], "DELETE", f"/v1/api_keys/{tenant.key_id}")
    assert again.status_code == 200, "ending an ended key is no error"


async def test_a_key_cannot_give_what_it_lacks(api: Api) -> None:
    tenant = await api.new_tenant(scopes=["keys", "usage"])
    more = await api.call(tenant.key, "POST", "/v1/api_keys", json={"scopes": ["inference"]})
    assert more.status_code == 400
    assert more.json()["error"]["param"] == "scopes"
    same = await api.call(tenant.key, "POST", "/v1/api_keys", json={})
    assert sorted(same.json()["scopes"]) == ["keys", "usage"]


async def test_bad_keys_are_refused_by_field(api: Api) -> None:
    tenant = await api.new_tenant()
    for body, param in (
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2099-01-01T00:00:00"}, "expires_at"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes[0]"),
        ({"name": ""}, "name"),
    ):
        answer = await api.call(tenant.key, "POST", "/v1/api_keys", json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param


async def test_others_keys_do_not_exist(api: Api) -> None:
    mine, theirs = await api.new_tenant("mine"), await api.new_tenant("theirs")
    listed = (await api.call(mine.key, "GET", "/v1/api_keys")).json()["data"]
    assert [row["id"] for row in listed] == [mine.key_id]
    real = await api.call(mine.key, "DELETE", f"/v1/api_keys/{theirs.key_id}")
    invented = await api.call(mine.key, "DELETE", "/v1/api_keys/key_00000000000000000000000000")
    assert real.status_code == invented.status_code == 404
    told = real.json()["error"]["message"].replace(theirs.key_id, "")
    assert told == invented.json()["error"]["message"].replace("key_00000000000000000000000000", "")
    assert (await api.call(theirs.key, "GET", "/v1/limits")).status_code == 200
    by_path = await api.admin("DELETE", f"/admin/v1/tenants/{mine.id}/api_keys/{theirs.key_id}")
    assert by_path.status_code == 404
