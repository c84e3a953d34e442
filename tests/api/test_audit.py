"""The audit log: every change leaves an entry in its own transaction, entries cannot be changed,
and changing them all the same is found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from api_harness import ADMIN_KEY, Api
from platform_fixtures import Servers, plain_url
from tenora_platform.bootstrap import database_urls

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def owner(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(plain_url(database_url), autocommit=True) as connection:
        yield connection


async def verdict(api: Api) -> str | None:
    answer = (await api.admin("GET", "/admin/v1/audit_logs/verification")).json()
    assert answer["valid"] is (answer["problem"] is None)
    problem: str | None = answer["problem"]
    return problem


async def test_every_change_is_written_down(api: Api) -> None:
    await api.put_plan("audited", {"requests_per_min": 5})
    tenant = await api.new_tenant(plan="audited")
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"plan": "free"})
    own = (await api.call(tenant.key, "POST", "/v1/api_keys", json={})).json()
    headers = {"x-request-id": "request-of-the-test"}
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{own['id']}", headers=headers)

    page = (await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}")).json()
    entries = list(reversed(page["data"]))
    assert [(entry["seq"], entry["action"]) for entry in entries] == [
        (1, "tenant.create"),
        (2, "api_key.create"),
        (3, "tenant.update"),
        (4, "api_key.create"),
        (5, "api_key.revoke"),
    ]
    assert entries[2]["details"] == {"plan": "free"}
    assert entries[0]["actor"].startswith("admin_key:")
    assert ADMIN_KEY not in str(entries)
    assert entries[4]["actor"] == f"api_key:{tenant.key_id}"
    assert entries[4]["target"] == own["id"]
    assert entries[4]["request_id"] == "request-of-the-test"
    assert [entry["prev_hash"] for entry in entries[1:]] == [e["hash"] for e in entries[:-1]]
    plans = (await api.admin("GET", "/admin/v1/audit_logs?action=plan.put")).json()["data"]
    assert plans[0]["target"] == "audited"
    assert plans[0]["chain"] == "operator"
    assert await verdict(api) is None


async def test_what_is_refused_leaves_no_entry(api: Api) -> None:
    before = (await api.admin("GET", "/admin/v1/audit_logs?limit=1")).json()["first_id"]
    await api.admin("POST", "/admin/v1/tenants", json={"name": "x", "plan": "nonesuch"})
    assert (await api.admin("GET", "/admin/v1/audit_logs?limit=1")).json()["first_id"] == before


async def test_at_once_the_chain_stays_a_chain(api: Api) -> None:
    tenant = await api.new_tenant()
    made = await asyncio.gather(
        *(api.call(tenant.key, "POST", "/v1/api_keys", json={}) for _ in range(12))
    )
    assert {answer.status_code for answer in made} == {201}
    path = f"/admin/v1/audit_logs?tenant_id={tenant.id}&limit=5"
    page = (await api.admin("GET", path)).json()
    seqs = [entry["seq"] for entry in page["data"]]
    while page["has_more"]:
        page = (await api.admin("GET", f"{path}&after={page['last_id']}")).json()
        seqs += [entry["seq"] for entry in page["data"]]
    assert sorted(seqs) == list(range(1, 15))
    assert await verdict(api) is None


@pytest.mark.parametrize("role", ["app", "admin", "owner"])
async def test_nobody_changes_an_entry(
    api: Api, servers: Servers, database_url: str, role: str
) -> None:
    tenant = await api.new_tenant()
    url = getattr(database_urls(database_url, servers.secret), role)
    text = url.render_as_string(hide_password=False)
    with psycopg.connect(plain_url(text), autocommit=True) as connection:
        connection.execute("select set_config('app.tenant', %s, false)", [tenant.id])
        for statement in (
            "update audit_logs set actor = 'nobody'",
            "delete from audit_logs",
            "truncate audit_logs",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


async def test_tampering_is_found(api: Api, owner: Connection) -> None:
    """By whoever can lift the trigger, as a superuser of the database can."""
    tenant = await api.new_tenant()
    other = await api.new_tenant()
    assert await verdict(api) is None
    owner.execute("alter table audit_logs disable trigger append_only")
    where = "where chain = %s and seq = %s"
    for column, forged in (
        ("actor", "somebody"),
        ("details", '{"plan":"premium"}'),
        ("at", "2001-01-01T00:00:00Z"),
        ("target", other.id),
        ("hash", "0" * 64),
    ):
        entry = [tenant.id, 1]
        kept = owner.execute(
            f"select {column}::text from audit_logs {where}",
            entry,
        ).fetchone()
        assert kept is not None
        change = f"update audit_logs set {column} = %s {where}"
        owner.execute(change, [forged, *entry])
        assert "changed" in str(await verdict(api)), column
        owner.execute(change, [kept[0], *entry])
        assert await verdict(api) is None

    row = owner.execute(f"select id from audit_logs {where}", [tenant.id, 1]).fetchone()
    owner.execute("update audit_logs set seq = 9 where id = %s", row or [])
    assert "missing" in str(await verdict(api))
    owner.execute("update audit_logs set seq = 1 where id = %s", row or [])
    owner.execute("alter table audit_logs enable trigger append_only")
    assert await verdict(api) is None
