"""What was derived from a grant ends with it: invitations, sessions, keys and remembered answers of
who was removed, has another role, or whose key was revoked or rotated."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from api_harness import ADMIN_KEY, Api, TestTenant
from people import Person, session_of_key, signed_in
from tenora_platform.errors import ForbiddenError
from tenora_platform.evaluations.payers import tenant_of
from tenora_platform.people import repository
from tenora_platform.people.sessions import Origin

BOTH = ["a tenant's", "the operator's"]


async def invite(by: Person, path: str, **body: Any) -> str:
    """The link's token."""
    made = await by.call("POST", path, json={"role": "owner", **body})
    assert made.status_code == 201, made.text
    return str(made.json()["link"]).partition("#")[2]


async def accept(person: Person, token: str) -> httpx.Response:
    return await person.call("POST", "/auth/invitations/accept", json={"token": token})


async def signed_in_again(person: Person) -> Person:
    sessions = person.api.state.auth.sessions
    async with person.api.state.db.admin_session() as session:
        origin = Origin("192.0.2.8", "a test")
        begun = await sessions.begin(session, origin, person_id=person.id)
    return Person(person.api, person.id, begun.token)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def place(api: Api, whose: str) -> tuple[str | None, str]:
    """A tenant's id, or None, and the beginning of the paths of its people's routes."""
    if whose == "the operator's":
        return None, "/admin/v1"
    return (await api.new_tenant()).id, "/v1"


@pytest.mark.parametrize("whose", BOTH)
@pytest.mark.parametrize("how", ["removed", "demoted"])
async def test_invitations_end_with_the_right_to_make_them(api: Api, whose: str, how: str) -> None:
    where, path = await place(api, whose)
    keeper, leaver = await signed_in(api, (where, "owner")), await signed_in(api, (where, "owner"))
    own, kept = (
        await invite(leaver, f"{path}/invitations"),
        await invite(keeper, f"{path}/invitations"),
    )
    of_leaver = f"{path}/people/{leaver.id}"
    if how == "removed":
        assert (await keeper.call("DELETE", of_leaver)).status_code == 200
    else:
        assert (await keeper.call("PATCH", of_leaver, json={"role": "billing"})).status_code == 200
    listed = (await keeper.call("GET", f"{path}/invitations")).json()["data"]
    makers = [each["created_by"] for each in listed if each["state"] == "open"]
    assert f"person:{leaver.id}" not in makers
    assert f"person:{keeper.id}" in makers
    assert code_of(await accept(await signed_in(api), own)) == (400, "invitation_over")
    assert (await accept(await signed_in(api), kept)).status_code == 200


@pytest.mark.parametrize("whose", BOTH)
@pytest.mark.parametrize("email", ["theirs", None])
async def test_an_earlier_invitation_lets_nobody_back_in(
    api: Api, whose: str, email: str | None
) -> None:
    where, path = await place(api, whose)
    address = f"{where or 'operator'}-{email}@example.com"
    owner = await signed_in(api, (where, "owner"))
    leaver = await signed_in(api, (where, "owner"), email=address)
    body = {"email": address} if email else {}
    earlier = await invite(owner, f"{path}/invitations", **body)
    assert (await owner.call("DELETE", f"{path}/people/{leaver.id}")).status_code == 200
    again = await signed_in_again(leaver)
    assert code_of(await accept(again, earlier)) == (400, "invitation_over")
    later = await invite(owner, f"{path}/invitations", **body)
    assert (await accept(again, later)).status_code == 200


@pytest.mark.parametrize("whose", BOTH)
async def test_sessions_from_before_a_removal_stay_out(api: Api, whose: str) -> None:
    """Also those of somebody who belongs to another tenant as well, and so stays signed in."""
    where, path = await place(api, whose)
    elsewhere = await api.new_tenant()
    owner = await signed_in(api, (where, "owner"))
    for more in ([], [(elsewhere.id, "viewer")]):
        leaver = await signed_in(api, (where, "owner"), *more)
        assert (await leaver.call("GET", f"{path}/people")).status_code in (200, 400)
        assert (await owner.call("DELETE", f"{path}/people/{leaver.id}")).status_code == 200
        token = await invite(owner, f"{path}/invitations")
        refused = await accept(leaver, token)
        assert code_of(refused) == (401, "session_over")
        again = await signed_in_again(leaver)
        assert (await accept(again, token)).status_code == 200
        headers = {"x-tenora-tenant": where} if where else {}
        assert (await again.call("GET", f"{path}/people", headers=headers)).status_code == 200
        old = await leaver.call("GET", f"{path}/people", headers=headers)
        assert old.status_code == (403 if more else 401), old.text


async def test_an_owner_ends_another_persons_sessions(api: Api) -> None:
    tenant, other = await api.new_tenant(), await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "developer"))
    of_both = await signed_in(api, (tenant.id, "viewer"), (other.id, "viewer"))
    developer = await signed_in(api, (tenant.id, "developer"))
    for each in (person, of_both):
        path = f"/v1/people/{each.id}/sessions"
        assert (await developer.call("DELETE", path)).status_code == 403
        assert (await owner.call("DELETE", path)).status_code == 200
        assert (
            await each.call("GET", "/v1/limits", headers={"x-tenora-tenant": tenant.id})
        ).status_code in (401, 403)
        again = await signed_in_again(each)
        here = {"x-tenora-tenant": tenant.id}
        assert (await again.call("GET", "/v1/limits", headers=here)).status_code == 200
    there = {"x-tenora-tenant": other.id}
    assert (await of_both.call("GET", "/v1/limits", headers=there)).status_code == 200
    stranger = await signed_in(api, (other.id, "owner"))
    assert (await stranger.call("DELETE", f"/v1/people/{person.id}/sessions")).status_code == 404
    for path in (f"/admin/v1/tenants/{tenant.id}/people", "/admin/v1/people"):
        colleague = await signed_in(
            api, (None if path == "/admin/v1/people" else tenant.id, "owner")
        )
        assert (await api.admin("DELETE", f"{path}/{colleague.id}/sessions")).status_code == 200
        assert (await colleague.call("GET", "/auth/session")).status_code == 401


@pytest.mark.parametrize("end", ["revoke", "rotate", "rotate with overlap"])
@pytest.mark.parametrize("operators", [True, False])
async def test_an_admin_keys_links_end_with_its_secret(api: Api, end: str, operators: bool) -> None:
    made = (await api.admin("POST", "/admin/v1/admin_keys", json={"role": "owner"})).json()
    path = "/admin/v1" if operators else f"/admin/v1/tenants/{(await api.new_tenant()).id}"
    invited = await api.call(made["key"], "POST", f"{path}/invitations", json={"role": "owner"})
    token = invited.json()["link"].partition("#")[2]
    of_key = f"/admin/v1/admin_keys/{made['id']}"
    if end == "revoke":
        await api.admin("DELETE", of_key)
    else:
        overlap = 3600 if "overlap" in end else 0
        await api.admin("POST", f"{of_key}/rotate", json={"overlap_s": overlap})
    person = await signed_in(api)
    answer = await accept(person, token)
    if "overlap" in end:
        assert answer.status_code == 200
    else:
        assert code_of(answer) == (400, "invitation_over")
        listed = (await api.admin("GET", f"{path}/invitations")).json()["data"]
        assert invited.json()["id"] not in {each["id"] for each in listed}


async def test_admin_keys_end_with_who_created_them(api: Api) -> None:
    first = (await api.admin("POST", "/admin/v1/admin_keys", json={"role": "owner"})).json()
    body = {"role": "owner"}
    second = (await api.call(first["key"], "POST", "/admin/v1/admin_keys", json=body)).json()
    third = (await api.call(second["key"], "POST", "/admin/v1/admin_keys", json=body)).json()
    assert third["created_by"] == f"admin_key:{second['id']}"
    await api.admin("DELETE", f"/admin/v1/admin_keys/{first['id']}")
    for each in (first, second, third):
        refused = await api.call(each["key"], "GET", "/admin/v1/admin_keys")
        assert code_of(refused) == (401, "key_revoked")
    owner = await signed_in(api, (None, "owner"))
    theirs = (await owner.call("POST", "/admin/v1/admin_keys", json=body)).json()
    kept = (await owner.call("POST", "/admin/v1/admin_keys", json=body)).json()
    for revoke, status in (("false", 200), ("true", 401)):
        path = f"/admin/v1/people/{owner.id}?revoke_keys={revoke}"
        change = await api.admin("PATCH", path, json={"role": "billing"})
        assert change.status_code == 200
        for each in (theirs, kept):
            answer = await api.call(each["key"], "GET", "/admin/v1/admin_keys")
            assert answer.status_code == status
        await api.admin("PATCH", f"/admin/v1/people/{owner.id}", json={"role": "owner"})


async def test_api_keys_end_with_the_person_who_created_them(api: Api) -> None:
    tenant = await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))

    async def leave(how: str, scopes: list[str]) -> int:
        leaver = await signed_in(api, (tenant.id, "owner"))
        made = (await leaver.call("POST", "/v1/api_keys", json={"scopes": scopes})).json()
        assert made["created_by"] == f"person:{leaver.id}"
        path = f"/v1/people/{leaver.id}"
        if how == "demoted":
            done = await owner.call("PATCH", path, json={"role": "developer"})
        else:
            done = await owner.call("DELETE", path + how)
        assert done.status_code == 200
        return (await api.call(made["key"], "GET", "/v1/limits")).status_code

    assert await leave("", ["usage"]) == 401
    assert await leave("?revoke_keys=false", ["usage"]) == 200
    assert await leave("demoted", ["usage"]) == 200
    assert await leave("demoted", ["usage", "keys"]) == 401


@pytest.mark.parametrize("end", ["revoke", "rotate"])
@pytest.mark.parametrize("kind", ["api", "admin"])
async def test_a_session_of_an_ended_secret_touches_no_other(api: Api, kind: str, end: str) -> None:
    """Not that of the secret which replaced it either."""
    if kind == "api":
        tenant = await api.new_tenant()
        key, path = tenant.key, f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    else:
        made = (await api.admin("POST", "/admin/v1/admin_keys", json={"role": "owner"})).json()
        key, path = made["key"], f"/admin/v1/admin_keys/{made['id']}"
    old = await session_of_key(api, key)
    new = (await api.admin("POST", f"{path}/rotate", json={"overlap_s": 3600})).json()["key"]
    successor = await session_of_key(api, new)
    theirs = (await successor.call("GET", "/auth/session")).json()["id"]
    listed = (await old.call("GET", "/auth/sessions")).json()["data"]
    assert theirs not in {each["id"] for each in listed}
    assert (await old.call("DELETE", f"/auth/sessions/{theirs}")).status_code == 404
    if end == "revoke":
        await api.admin("DELETE", path)
    else:
        await api.admin("POST", f"{path}/rotate", json={"overlap_s": 0})
    for each in (old, successor):
        for method, route in (("GET", "/auth/sessions"), ("DELETE", f"/auth/sessions/{theirs}")):
            refused = await each.call(method, route)
            assert code_of(refused) == (401, "key_revoked" if end == "revoke" else "key_rotated")
        assert (await each.call("POST", "/auth/logout")).status_code == 200


async def test_a_remembered_answer_is_kept_from_who_lost_a_scope(api: Api) -> None:
    tenant = await api.new_tenant()
    headers = {"idempotency-key": "lost"}
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={}, headers=headers)
    path = f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    await api.admin("PATCH", path, json={"scopes": ["usage"]})
    refused = await api.call(tenant.key, "POST", "/v1/api_keys", json={}, headers=headers)
    assert code_of(refused) == (403, "idempotency_authority_lost")
    assert made.json()["key"] not in refused.text


@pytest.mark.parametrize("whose", BOTH)
async def test_a_remembered_answer_is_kept_from_who_lost_a_role(api: Api, whose: str) -> None:
    where, path = await place(api, whose)
    owner, person = await signed_in(api, (where, "owner")), await signed_in(api, (where, "owner"))
    kind, body = ("admin_keys", {"role": "owner"}) if where is None else ("api_keys", {})

    async def create() -> httpx.Response:
        headers = {"idempotency-key": "lost"}
        return await person.call("POST", f"{path}/{kind}", json=body, headers=headers)

    made = await create()
    assert made.json() == (await create()).json()
    changed = await owner.call("PATCH", f"{path}/people/{person.id}", json={"role": "billing"})
    assert changed.status_code == 200
    refused = await create()
    assert code_of(refused) == (403, "idempotency_authority_lost")
    assert made.json()["key"] not in refused.text


async def test_a_person_has_idempotency_keys_at_each_tenant(api: Api) -> None:
    one, other = await api.new_tenant(), await api.new_tenant()
    person = await signed_in(api, (one.id, "owner"), (other.id, "owner"))
    ids = []
    for tenant in (one, other, one, other):
        headers = {"idempotency-key": "each", "x-tenora-tenant": tenant.id}
        answer = await person.call("POST", "/v1/api_keys", json={}, headers=headers)
        assert answer.status_code == 201
        ids.append(answer.json()["id"])
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


async def test_two_invitations_accepted_at_once_are_one_place(api: Api) -> None:
    tenant = await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    tokens = [await invite(owner, "/v1/invitations") for _ in range(4)]
    person = await signed_in(api)
    answers = await asyncio.gather(*(accept(person, token) for token in tokens))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    codes = {code_of(answer)[1] for answer in answers if answer.status_code == 409}
    assert codes == {"already_member"}


async def test_what_was_done_twice_at_once_is_no_failure_of_ours(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any table: here the second of two does not see the first."""
    tenant = await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    token = await invite(owner, "/v1/invitations")

    async def unseen(*_: object) -> None:
        return None

    monkeypatch.setattr(repository, "get_member", unseen)
    refused = await accept(owner, token)
    assert code_of(refused) == (409, "done_at_once")
    assert refused.headers["x-should-retry"] == "true"


async def test_an_evaluation_ends_with_the_person_who_created_it(api: Api) -> None:
    tenant = await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "developer"))
    assert (await tenant_of(api.state, tenant.id, person.id)).key_id == person.id
    await owner.call("DELETE", f"/v1/people/{person.id}")
    with pytest.raises(ForbiddenError):
        await tenant_of(api.state, tenant.id, person.id)


async def endpoint_by(api: Api, key: str) -> str:
    body = {"url": "https://hooks.example/x", "types": ["key.created"]}
    made = await api.call(key, "POST", "/v1/webhook_endpoints", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def child_of(api: Api, key: str, **body: Any) -> dict[str, Any]:
    made = await api.call(key, "POST", "/v1/api_keys", json=body)
    assert made.status_code == 201, made.text
    return dict(made.json())


@dataclass
class Family:
    """A tenant's key that has made a child, an endpoint of each, and an endpoint of another key."""

    tenant: TestTenant
    other_key: str
    child: dict[str, Any]
    endpoints: list[str]
    another_endpoint: str

    async def state(self, api: Api) -> tuple[int, list[bool]]:
        """What the child is answered, and which endpoints are enabled, the other's last."""
        answer = await api.call(self.child["key"], "GET", "/v1/limits")
        path = "/v1/webhook_endpoints"
        listed = (await api.call(self.other_key, "GET", path)).json()["data"]
        enabled = {each["id"]: each["enabled"] for each in listed}
        return answer.status_code, [
            enabled[each] for each in (*self.endpoints, self.another_endpoint)
        ]


async def new_family(api: Api) -> Family:
    tenant = await api.new_tenant()
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    other_key = (await api.admin("POST", path, json={})).json()["key"]
    child = await child_of(api, tenant.key)
    endpoints = [await endpoint_by(api, key) for key in (tenant.key, child["key"])]
    return Family(tenant, other_key, child, endpoints, await endpoint_by(api, other_key))


@pytest.mark.parametrize("by", ["the operator", "itself"])
@pytest.mark.parametrize(
    ("overlap_s", "query", "kept"),
    [(0, "", False), (0, "?revoke_keys=false", True), (600, "", True)],
)
async def test_a_keys_children_and_webhooks_end_with_its_secret(
    api: Api, by: str, overlap_s: int, query: str, kept: bool
) -> None:
    family = await new_family(api)
    tenant = family.tenant
    if by == "itself":
        caller, path = tenant.key, f"/v1/api_keys/{tenant.key_id}"
    else:
        caller, path = ADMIN_KEY, f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}"
    body = {"overlap_s": overlap_s}
    done = await api.call(caller, "POST", f"{path}/rotate{query}", json=body)
    assert done.status_code == 200, done.text
    assert (await api.call(done.json()["key"], "GET", "/v1/limits")).status_code == 200
    assert await family.state(api) == ((200 if kept else 401), [kept, kept, True])


@pytest.mark.parametrize(("query", "kept"), [("", False), ("?disable_webhooks=false", True)])
async def test_a_keys_webhooks_are_disabled_with_it(api: Api, query: str, kept: bool) -> None:
    family = await new_family(api)
    path = f"/v1/api_keys/{family.tenant.key_id}{query}"
    done = (await api.call(family.other_key, "DELETE", path)).json()
    assert (done["object"], done["keys"]) == ("api_key", 2)
    assert done["webhook_endpoints"] == (0 if kept else 2)
    assert await family.state(api) == (401, [kept, kept, True])
    (enabled,) = family.endpoints[:1]
    path = f"/v1/webhook_endpoints/{enabled}"
    again = await api.call(family.other_key, "PATCH", path, json={"enabled": True})
    assert again.json()["enabled"] is True


async def test_a_keys_webhooks_are_disabled_with_the_scope_that_they_need(api: Api) -> None:
    family = await new_family(api)
    path = f"/v1/api_keys/{family.tenant.key_id}"
    body: dict[str, Any] = {"scopes": ["inference", "usage", "keys"]}
    assert (await api.call(family.other_key, "PATCH", path, json=body)).status_code == 200
    assert (await family.state(api))[1] == [True, True, True]
    body = {"scopes": ["inference", "usage"]}
    assert (await api.call(family.other_key, "PATCH", path, json=body)).status_code == 200
    assert (await family.state(api))[1] == [False, False, True]
