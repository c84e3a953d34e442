"""Who belongs where: the operator's own people, a tenant's people by the operator, what the
database shows of people to whom, and what a person uses."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from api_harness import Api
from people import signed_in
from tenora_platform.people.tables import PersonRow


async def test_the_operators_people(api: Api) -> None:
    owner = await signed_in(api, (None, "owner"))
    colleague = await signed_in(api, (None, "read_only"))
    path = f"/admin/v1/people/{colleague.id}"
    refused = await colleague.call("PATCH", path, json={"role": "owner"})
    assert refused.json()["error"]["code"] == "insufficient_role"
    listed = (await owner.call("GET", "/admin/v1/people?limit=2")).json()["data"]
    assert [each["id"] for each in listed] == [colleague.id, owner.id]
    assert (await owner.call("PATCH", path, json={"role": "operator"})).json()["role"] == "operator"
    named = {"name": "by an operator"}
    assert (await colleague.call("POST", "/admin/v1/tenants", json=named)).status_code == 201
    assert (await owner.call("DELETE", path)).status_code == 200
    out = await colleague.call("GET", "/admin/v1/tenants")
    assert (out.status_code, out.json()["error"]["code"]) == (401, "session_over")
    # The configured key is an owner's: the last person may go.
    assert (await owner.call("DELETE", f"/admin/v1/people/{owner.id}")).status_code == 200


async def test_without_an_owners_key_the_last_owner_stays(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with api.state.db.admin_session() as session:
        await session.execute(text("delete from memberships where tenant_id is null"))
    owner = await signed_in(api, (None, "owner"))
    monkeypatch.setattr(api.state.auth.admins, "_configured", {})
    path = f"/admin/v1/people/{owner.id}"
    refused = await owner.call("DELETE", path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "last_owner")
    assert (await owner.call("PATCH", path, json={"role": "billing"})).status_code == 409
    await signed_in(api, (None, "owner"))
    assert (await owner.call("DELETE", path)).status_code == 200


async def test_the_operator_keeps_a_tenants_people(api: Api) -> None:
    tenant, other = await api.new_tenant(), await api.new_tenant()
    owner = await signed_in(api, (tenant.id, "owner"))
    person = await signed_in(api, (tenant.id, "viewer"), (other.id, "viewer"))
    path = f"/admin/v1/tenants/{tenant.id}/people"
    listed = (await api.admin("GET", path)).json()["data"]
    assert {each["id"]: each["role"] for each in listed} == {
        owner.id: "owner",
        person.id: "viewer",
    }
    wrong = await api.admin("PATCH", f"{path}/{person.id}", json={"role": "operator"})
    assert wrong.status_code == 400
    assert (await api.admin("DELETE", f"{path}/{owner.id}")).status_code == 409
    assert (await api.admin("DELETE", f"{path}/{person.id}")).status_code == 200
    assert (await api.admin("DELETE", f"{path}/{person.id}")).status_code == 404
    me = (await person.call("GET", "/v1/me")).json()
    assert me["tenant"]["id"] == other.id, "what is left is the only one"


async def test_a_tenants_session_sees_its_own_people_and_joins_nobody(api: Api) -> None:
    tenant, other = await api.new_tenant(), await api.new_tenant()
    mine = await signed_in(api, (tenant.id, "owner"))
    theirs = await signed_in(api, (other.id, "owner"))
    async with api.state.db.tenant_session(tenant.id) as session:
        for query in ("select id from people", "select person_id from memberships"):
            assert (await session.execute(text(query))).scalars().all() == [mine.id]
    for statement in (
        "insert into memberships (id, tenant_id, person_id, role)"
        f" values ('m', '{tenant.id}', '{theirs.id}', 'owner')",
        "select * from sessions",
        "update people set email = 'boss@example.com'",
    ):
        with pytest.raises(ProgrammingError, match="permission denied"):
            async with api.state.db.tenant_session(tenant.id) as session:
                await session.execute(text(statement))


@pytest.mark.parametrize(
    ("email", "verified", "joins"),
    [
        ("BOSS@Example.com", True, True),
        ("boss@example.com", False, False),
        ("bo\u017fs@example.com", True, False),  # a long s, which folds into s
        ("boss@stra\u00dfe.example", True, False),
        ("boss@strasse.example", True, False),
    ],
)
async def test_an_invitation_is_for_that_address_alone(
    api: Api, email: str, verified: bool, joins: bool
) -> None:
    tenant = await api.new_tenant()
    invited = "boss@stra\u00dfe.example" if "strasse" in email else "boss@example.com"
    body = {"role": "owner", "email": invited}
    made = await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/invitations", json=body)
    token = made.json()["link"].partition("#")[2]
    person = await signed_in(api, email=email, verified=verified)
    answer = await person.call("POST", "/auth/invitations/accept", json={"token": token})
    assert (answer.status_code == 200) is joins, answer.text


async def test_an_unverified_email_is_marked_wherever_it_is_shown(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (tenant.id, "owner"), email="boss@example.com", verified=False)
    (listed,) = (await person.call("GET", "/v1/people")).json()["data"]
    assert (listed["email"], listed["email_verified"]) == ("boss@example.com", False)
    assert (await person.call("GET", "/v1/me")).json()["person"]["email_verified"] is False
    session = (await person.call("GET", "/auth/session")).json()
    assert session["person"]["email_verified"] is False
    entries = (await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}")).json()
    assert "boss@example.com (unverified)" in str(entries)


@pytest.mark.parametrize("sign", ["@", "\uff20", "\ufe6b"])
async def test_a_name_does_not_stand_for_an_address(api: Api, sign: str) -> None:
    """Nobody has verified a name, and who has no email is shown by it."""
    tenant = await api.new_tenant()
    person = await signed_in(api, (tenant.id, "owner"))
    name = f"boss{sign}example.com"
    async with api.state.db.admin_session() as session:
        row = await session.get_one(PersonRow, person.id)
        row.email, row.email_verified, row.name = None, False, name
    refused = await person.call("GET", "/admin/v1/tenants")
    assert f"{name} (unverified)" in refused.json()["error"]["message"]
    page = (await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}")).json()
    shown = {each["actor_name"] for each in page["data"] if each["actor"].endswith(person.id)}
    assert shown == {f"{name} (unverified)"}


async def test_what_a_person_uses_is_under_their_id_and_within_the_plan(api: Api) -> None:
    await api.put_plan("narrow", {"requests_per_min": 2})
    tenant = await api.new_tenant(plan="narrow")
    person = await signed_in(api, (tenant.id, "developer"))
    body = {"model": api.engine.model.id, "messages": [{"role": "user", "content": "x"}]}
    answers = [await person.call("POST", "/v1/chat/completions", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    kept = (await person.call("GET", "/v1/limits")).json()
    assert kept["requests_per_min"]["limit"] == 2


async def test_a_suspended_tenant_is_closed_to_its_people(api: Api) -> None:
    tenant = await api.new_tenant()
    person = await signed_in(api, (tenant.id, "owner"))
    assert (await person.call("GET", "/v1/limits")).status_code == 200
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})
    refused = await person.call("GET", "/v1/limits")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_suspended")
    said = (await person.call("GET", "/auth/session")).json()
    assert said["tenants"][0]["status"] == "suspended"
