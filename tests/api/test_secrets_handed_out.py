"""Secrets end with who was given them: by a rotation, on the operator's side, by a key that does
not last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api_harness import Api, TestTenant
from people import signed_in

NOW = {"overlap_s": 0}


async def good(api: Api, key: str, path: str = "/v1/limits") -> bool:
    return (await api.call(key, "GET", path)).status_code == 200


async def child(api: Api, tenant: TestTenant) -> dict[str, Any]:
    made: dict[str, Any] = (await api.call(tenant.key, "POST", "/v1/api_keys", json={})).json()
    return made


async def admin_key(api: Api, by: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"name": "n", "role": "owner", **more}
    path = "/admin/v1/admin_keys"
    made = await (
        api.call(by, "POST", path, json=body) if by else api.admin("POST", path, json=body)
    )
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


async def test_a_key_rotates_itself_and_what_comes_from_it(api: Api) -> None:
    tenant = await api.new_tenant()
    other = await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={})
    mine = await child(api, tenant)
    for key_id in (tenant.key_id, other.json()["id"]):
        refused = await api.call(mine["key"], "POST", f"/v1/api_keys/{key_id}/rotate", json=NOW)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_own_key")
    for by, key_id in ((mine["key"], mine["id"]), (tenant.key, mine["id"])):
        made = await api.call(by, "POST", f"/v1/api_keys/{key_id}/rotate", json=NOW)
        assert made.status_code == 200, made.text


@pytest.mark.parametrize("keep", [False, True])
async def test_what_a_person_has_by_a_rotation_ends_with_them(api: Api, keep: bool) -> None:
    tenant = await api.new_tenant()
    await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "owner"))
    rotated = await person.call("POST", f"/v1/api_keys/{tenant.key_id}/rotate", json=NOW)
    key = rotated.json()["key"]
    path = f"/admin/v1/tenants/{tenant.id}/people/{person.id}"
    await api.admin("DELETE", path + ("?revoke_keys=false" if keep else ""))
    assert await good(api, key) == keep


async def test_of_a_key_that_another_rotated_since_only_their_secret_ends(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (tenant.id, "owner"))
    owner = await signed_in(api, (tenant.id, "owner"))
    path = f"/v1/api_keys/{tenant.key_id}/rotate"
    theirs = (await person.call("POST", path, json=NOW)).json()["key"]
    ours = (await owner.call("POST", path)).json()["key"]
    assert await good(api, theirs)
    await owner.call("DELETE", f"/v1/people/{person.id}")
    assert (await good(api, theirs), await good(api, ours)) == (False, True)


@pytest.mark.parametrize("rotated", [False, True])
async def test_admin_keys_that_an_owner_had_a_secret_of(api: Api, rotated: bool) -> None:
    person = await signed_in(api, (None, "owner"))
    made = await admin_key(api)
    path = f"/admin/v1/admin_keys/{made['id']}/rotate"
    theirs = (await person.call("POST", path, json=NOW)).json()["key"]
    ours = (await api.admin("POST", path)).json()["key"] if rotated else None
    await api.admin("DELETE", f"/admin/v1/people/{person.id}")
    tenants = "/admin/v1/tenants"
    assert not await good(api, theirs, tenants)
    assert ours is None or await good(api, ours, tenants)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", ["removed", "demoted", "revoked", "rotated", "made by its key"])
async def test_tenants_keys_end_with_whom_they_were_made_by(api: Api, how: str, keep: bool) -> None:
    tenant = await api.new_tenant()
    person, key = await signed_in(api, (None, "owner")), await admin_key(api)
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    if how in ("revoked", "rotated"):
        made = await api.call(key["key"], "POST", path, json={})
    elif how == "made by its key":
        theirs = await person.call(
            "POST", "/admin/v1/admin_keys", json={"name": "n", "role": "owner"}
        )
        made = await api.call(theirs.json()["key"], "POST", path, json={})
    else:
        made = await person.call("POST", path, json={})
    where = f"/admin/v1/people/{person.id}"
    ending = {
        "demoted": ("PATCH", where, {"role": "read_only"}),
        "revoked": ("DELETE", f"/admin/v1/admin_keys/{key['id']}", None),
        "rotated": ("POST", f"/admin/v1/admin_keys/{key['id']}/rotate", NOW),
    }
    method, url, body = ending.get(how, ("DELETE", where, None))
    done = await api.admin(method, url + ("?revoke_keys=false" if keep else ""), json=body)
    assert done.status_code == 200, done.text
    assert await good(api, made.json()["key"]) == keep
    assert await good(api, tenant.key), "what others made stays"


async def test_who_belongs_to_a_tenant_keeps_what_they_made_there(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (None, "owner"), (tenant.id, "owner"))
    at = {"x-tenora-tenant": tenant.id}
    made = await person.call("POST", "/v1/api_keys", json={}, headers=at)
    await api.admin("PATCH", f"/admin/v1/people/{person.id}", json={"role": "read_only"})
    assert await good(api, made.json()["key"])


async def test_an_operator_that_may_create_keys_keeps_those_of_an_owner(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (None, "owner"))
    made = await person.call("POST", f"/admin/v1/tenants/{tenant.id}/api_keys", json={})
    await api.admin("PATCH", f"/admin/v1/people/{person.id}", json={"role": "operator"})
    assert await good(api, made.json()["key"])


async def test_an_admin_key_that_expires_hands_out_nothing_that_lasts_longer(api: Api) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    key, lasting = await admin_key(api, expires_at=end.isoformat()), await admin_key(api)
    made = await admin_key(api, by=key["key"])
    assert datetime.fromisoformat(made["expires_at"]) == end
    later = {"name": "n", "role": "owner", "expires_at": (end + timedelta(days=1)).isoformat()}
    for path, body in (
        ("/admin/v1/admin_keys", later),
        (f"/admin/v1/admin_keys/{lasting['id']}/rotate", NOW),
    ):
        refused = await api.call(key["key"], "POST", path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "beyond_own_key")
    path = f"/admin/v1/admin_keys/{key['id']}/rotate"
    assert (await api.call(key["key"], "POST", path, json=NOW)).status_code == 200


@pytest.mark.parametrize("keep", [False, True])
async def test_a_leaked_admin_keys_keys_end_when_it_is_rotated_at_once(
    api: Api, keep: bool
) -> None:
    key = await admin_key(api)
    made = await admin_key(api, by=key["key"])
    path = f"/admin/v1/admin_keys/{key['id']}/rotate"
    await api.admin("POST", path + ("?revoke_keys=false" if keep else ""), json=NOW)
    assert await good(api, made["key"], "/admin/v1/tenants") == keep


HOOK = {"url": "https://hooks.example.com/tenora"}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("how", ["removed", "demoted", "moved by them"])
async def test_events_do_not_go_where_somebody_said_who_is_gone(
    api: Api, how: str, keep: bool
) -> None:
    tenant = await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "owner"))
    path = "/v1/webhook_endpoints"
    by = owner if how == "moved by them" else person
    made = (await by.call("POST", path, json=HOOK)).json()
    if how == "moved by them":
        elsewhere = {"url": "https://theirs.example.com/"}
        made = (await person.call("PATCH", f"{path}/{made['id']}", json=elsewhere)).json()
        assert made["url_by"] == f"person:{person.id}"
    assert made["created_by"] == f"person:{by.id}"
    others = (await owner.call("POST", path, json=HOOK)).json()
    where = f"/v1/people/{person.id}" + ("?revoke_keys=false" if keep else "")
    lower = {"role": "developer"} if how == "demoted" else None
    done = await owner.call("PATCH" if lower else "DELETE", where, json=lower)
    assert done.status_code == 200
    now = {each["id"]: each for each in (await owner.call("GET", path)).json()["data"]}
    assert now[made["id"]]["enabled"] == keep
    assert now[others["id"]]["enabled"]


@pytest.mark.parametrize("how", ["person", "admin key"])
async def test_the_operators_webhooks_end_with_whom_they_were_made_by(api: Api, how: str) -> None:
    path = "/admin/v1/webhook_endpoints"
    person, key = await signed_in(api, (None, "owner")), await admin_key(api)
    if how == "person":
        made = await person.call("POST", path, json=HOOK)
        await api.admin("DELETE", f"/admin/v1/people/{person.id}")
    else:
        made = await api.call(key["key"], "POST", path, json=HOOK)
        await api.admin("DELETE", f"/admin/v1/admin_keys/{key['id']}")
    now = (await api.admin("GET", f"{path}/{made.json()['id']}")).json()
    assert not now["enabled"]
