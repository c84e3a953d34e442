"""The audit log: every change leaves an entry in its own transaction, entries cannot be changed,
and changing them all the same is found."""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from adapter_files import adapter_form
from api_harness import ADMIN_KEY, Api
from platform_fixtures import Connection, Servers, plain_url
from tenora_platform.audit import repository
from tenora_platform.audit.tables import AuditRow
from tenora_platform.bootstrap import database_urls
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from verification import problems_of


async def verdict(api: Api) -> str | None:
    return next(iter(await problems_of(api.state)), None)


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
    assert entries[2]["before"]["plan"] == "audited"
    assert entries[2]["after"] == entries[2]["before"] | {"plan": "free"}
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


async def test_entries_say_from_where(api: Api) -> None:
    """By the address of the connection; a proxy's word counts where the proxy is trusted, which is
    the server's affair (uvicorn's ProxyHeadersMiddleware)."""
    tenant = await api.new_tenant()
    await api.call(tenant.key, "POST", "/v1/api_keys", json={})
    mine = (await api.call(tenant.key, "GET", "/v1/audit_logs")).json()["data"]
    assert [entry["action"] for entry in mine][:2] == ["api_key.create", "api_key.create"]
    assert mine[0]["address"] == "127.0.0.1"
    assert mine[0]["details"]["address"] == "127.0.0.1"  # is hashed
    other = await api.new_tenant()
    theirs = (await api.call(other.key, "GET", "/v1/audit_logs")).json()["data"]
    assert {entry["tenant_id"] for entry in theirs} == {other.id}
    by = f"/v1/audit_logs?actor=api_key:{tenant.key_id}&action=api_key.create&target={tenant.id}"
    assert (await api.call(tenant.key, "GET", by)).json()["data"] == []
    one = f"/v1/audit_logs?target={mine[0]['target']}"
    assert (await api.call(tenant.key, "GET", one)).json()["data"] == mine[:1]


async def test_the_log_is_searched_by_names(api: Api) -> None:
    """Of tenants, keys and adapters, in any case; a tenant finds its own alone."""
    tenant = await api.new_tenant("Fabrikam 100%")
    made = await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "Nightly Job"})
    key = made.json()["id"]
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{key}")
    other = await api.new_tenant("Contoso")
    await api.call(other.key, "POST", "/v1/api_keys", json={"name": "nightly job"})

    mine = (await api.call(tenant.key, "GET", "/v1/audit_logs?q=nightly%20JOB")).json()["data"]
    assert [(each["action"], each["target_name"]) for each in mine] == [
        ("api_key.revoke", "Nightly Job"),
        ("api_key.create", "Nightly Job"),
    ]
    found = (await api.admin("GET", "/admin/v1/audit_logs?q=nightly%20job")).json()["data"]
    assert {each["tenant_name"] for each in found} == {"Fabrikam 100%", "Contoso"}
    by_tenant = (await api.admin("GET", "/admin/v1/audit_logs?q=m%20100%25")).json()["data"]
    assert {each["tenant_id"] for each in by_tenant} == {tenant.id}
    assert {"tenant.create", "api_key.revoke"} <= {each["action"] for each in by_tenant}
    assert None not in {each["actor_name"] for each in mine}
    by_us = (await api.call(tenant.key, "GET", "/v1/audit_logs?action=tenant.create")).json()
    assert [each["actor_name"] for each in by_us["data"]] == ["operator"], "and not by whom of them"


async def test_adapters_versions_and_configured_keys_have_names(api: Api) -> None:
    tenant = await api.new_tenant("Fabrikam")
    form = adapter_form(api.engine.model, "support")
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=form)
    version = made.json()["version"]
    found = (await api.call(tenant.key, "GET", "/v1/audit_logs?q=SUPPORT")).json()["data"]
    assert {each["target_name"] for each in found} >= {f"support@{version}"}
    operators = (await api.admin("GET", "/admin/v1/audit_logs?limit=100")).json()["data"]
    assert "configured admin key" in {each["actor_name"] for each in operators}


async def test_the_log_is_exported_whole_and_in_order(api: Api) -> None:
    tenant = await api.new_tenant()
    for _ in range(3):
        await api.call(tenant.key, "POST", "/v1/api_keys", json={})
    path = "/admin/v1/audit_logs/export"
    lines = [json.loads(each) for each in (await api.admin("GET", path)).text.splitlines()]
    places = [(entry["chain"], entry["seq"]) for entry in lines]
    assert places == sorted(places)
    alone = (await api.admin("GET", f"{path}?tenant_id={tenant.id}")).text.splitlines()
    assert [json.loads(each)["seq"] for each in alone] == [1, 2, 3, 4, 5]
    operator = (await api.admin("GET", f"{path}?operator=true")).text.splitlines()
    assert {json.loads(each)["chain"] for each in operator} == {"operator"}
    for line, after in itertools.pairwise(lines):
        if line["chain"] == after["chain"]:
            assert after["prev_hash"] == line["hash"]


@pytest.mark.parametrize(
    "path", ["/admin/v1/audit_logs/export?tenant_id=", "/admin/v1/usage/cloudevents?tenant="]
)
async def test_an_export_that_is_refused_does_not_begin(api: Api, path: str) -> None:
    answer = await api.admin("GET", f"{path}%00")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_value"


async def test_a_tenant_exports_its_own_chain(api: Api) -> None:
    tenant = await api.new_tenant()
    await api.call(tenant.key, "POST", "/v1/api_keys", json={})
    await api.new_tenant()  # whose chain is its own
    answer = await api.call(tenant.key, "GET", "/v1/audit_logs/export")
    assert 'filename="audit_log.jsonl"' in answer.headers["content-disposition"]
    by_operator = f"/admin/v1/audit_logs/export?tenant_id={tenant.id}"
    assert answer.text == (await api.admin("GET", by_operator)).text
    assert [json.loads(each)["seq"] for each in answer.text.splitlines()] == [1, 2, 3]


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
    url = getattr(database_urls(database_url, servers.secret, DEFAULT), role)
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


async def last_entry(api: Api, action: str) -> dict[str, Any]:
    page = (await api.admin("GET", f"/admin/v1/audit_logs?action={action}&limit=1")).json()
    entry: dict[str, Any] = page["data"][0]
    for name in ("before", "after"):
        assert entry["details"][name] == entry[name]  # so the hash covers it
    return entry


async def test_an_entry_says_what_changed(api: Api) -> None:
    """Of plans, tenants, keys and prices: as it was and as it is, whole, and no secret."""
    await api.put_plan("told", {"requests_per_min": 5, "budget": "1.5"}, weight=2)
    made = await last_entry(api, "plan.put")
    assert made["before"] is None
    await api.put_plan("told", {"requests_per_min": 7}, weight=3, tiers=["default"])
    entry = await last_entry(api, "plan.put")
    assert entry["before"] == made["after"]
    assert Decimal(entry["before"]["budget"]) == Decimal("1.5")
    assert [entry[when]["weight"] for when in ("before", "after")] == [2, 3]
    assert [entry[when]["requests_per_min"] for when in ("before", "after")] == [5, 7]
    assert entry["after"]["budget"] is None
    assert entry["after"]["tiers"] == ["default"]

    tenant = await api.new_tenant("told", "told", expires_at="2100-01-01T00:00:00+02:00")
    key = await last_entry(api, "api_key.create")
    assert key["before"] is None
    assert key["after"]["scopes"]
    assert key["after"]["expires_at"] == "2099-12-31T22:00:00+00:00"
    assert tenant.key.rsplit("_", 1)[-1] not in str(key)
    assert "hash" not in key["after"]
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"status": "suspended"})
    entry = await last_entry(api, "tenant.update")
    assert entry["before"]["status"] == "active"
    assert entry["after"] == entry["before"] | {"status": "suspended"}
    await api.admin("DELETE", f"/admin/v1/tenants/{tenant.id}/api_keys/{tenant.key_id}")
    entry = await last_entry(api, "api_key.revoke")
    assert entry["before"] == key["after"]
    assert entry["after"]["revoked_at"] is not None

    given = {"uncached_prefill": "1.25", "cached_prefill": "0", "output": "99.000001"}
    price = {"model": "told", "effective_from": "2033-01-01T00:00:00Z", "per_million": given}
    version = (await api.admin("POST", "/admin/v1/prices", json=price)).json()
    entry = await last_entry(api, "price_version.create")
    assert entry["target"] == version["id"]
    assert entry["before"] is None
    free = dict.fromkeys(("cold_load", "device_residency", "host_residency", "stored"), "0")
    assert entry["after"]["per_million"] == {**given, **free}
    assert entry["after"]["effective_from"] == "2033-01-01T00:00:00+00:00"
    await api.admin("DELETE", f"/admin/v1/prices/{version['id']}")
    gone = await last_entry(api, "price_version.withdraw")
    assert gone["before"]["id"] == version["id"]
    assert Decimal(gone["before"]["per_million"]["output"]) == Decimal("99.000001")
    assert gone["after"] is None
    assert await verdict(api) is None


async def test_an_alias_entry_has_both_targets(api: Api) -> None:
    tenant = await api.new_tenant()
    for _ in range(2):
        form = adapter_form(api.engine.model, "aliased")
        answer = await api.call(tenant.key, "POST", "/v1/adapters", files=form)
        assert answer.status_code == 202, answer.text
    async with asyncio.timeout(20):
        while True:
            shown = (await api.call(tenant.key, "GET", "/v1/adapters/aliased")).json()
            if [each["state"] for each in shown["versions"]] == ["active", "active"]:
                break
            await asyncio.sleep(0.05)
    activated = await last_entry(api, "adapter_version.activate")
    assert activated["before"] == {"state": "validating"}
    assert activated["after"]["digest"].startswith("sha256:")
    first = [{"version": 1, "weight": 100}]
    second = [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}]
    for before, after in ((None, first), (first, second)):
        path = "/v1/adapters/aliased/aliases/prod"
        await api.call(tenant.key, "PUT", path, json={"targets": after})
        entry = await last_entry(api, "adapter_alias.put")
        expected = None if before is None else {"targets": before, "shadow": None}
        assert entry["before"] == expected
        assert entry["after"] == {"targets": after, "shadow": None}
    await api.call(tenant.key, "DELETE", "/v1/adapters/aliased/versions/2")
    entry = await last_entry(api, "adapter_version.delete")
    assert (entry["before"], entry["after"]) == ({"state": "active"}, {"state": "revoked"})
    await api.call(tenant.key, "DELETE", "/v1/adapters/aliased")
    entry = await last_entry(api, "adapter.delete")
    assert entry["before"] == {
        "versions": {"1": "active", "2": "revoked"},
        "aliases": {"prod": second},
    }
    assert entry["after"] is None
    assert await verdict(api) is None


async def test_entries_from_before_still_verify(api: Api) -> None:
    """They have other details, hashed as the text that they are."""
    tenant = await api.new_tenant()
    async with api.state.db.admin_session() as session:
        last = await repository.last_of(session, tenant.id)
        assert last is not None
        row = AuditRow(
            id=new_id("audit"),
            tenant_id=tenant.id,
            chain=tenant.id,
            seq=last.seq + 1,
            at=datetime.now(UTC),
            actor="key_old",
            action="old.entry",
            target="x",
            details='{"name":"x@prod"}',
            request_id=None,
            prev_hash=last.hash,
        )
        row.hash = api.state.audit.hash_of(row)
        session.add(row)
    page = (await api.admin("GET", "/admin/v1/audit_logs?action=old.entry")).json()
    entry = page["data"][0]
    assert entry["details"] == {"name": "x@prod"}
    assert (entry["before"], entry["after"]) == (None, None)
    await api.admin("PATCH", f"/admin/v1/tenants/{tenant.id}", json={"name": "after it"})
    assert await verdict(api) is None


async def found(api: Api, key: str | None, **query: str) -> list[dict[str, Any]]:
    """The entries, of the tenant's list or of the operator's."""
    path = "/v1/audit_logs" if key else "/admin/v1/audit_logs"
    answer = await api.call(key or ADMIN_KEY, "GET", path, params=query)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


async def test_the_log_is_searched_by_who_what_and_when(api: Api) -> None:
    tenant, other = await api.new_tenant(), await api.new_tenant()
    mine = (await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "ci"})).json()["id"]
    await api.call(tenant.key, "DELETE", f"/v1/api_keys/{mine}")
    whole = await found(api, tenant.key)
    assert [each["action"] for each in whole] == [
        "api_key.revoke",
        "api_key.create",
        "api_key.create",
        "tenant.create",
    ]
    by_part = {
        "REVOKE": whole[:1],
        mine: whole[:2],
        f"api_key:{tenant.key_id}": whole[:2],
        str(whole[3]["request_id"]): whole[3:],
        "100%": [],
        "_": whole,
        other.id: [],
    }
    for part, expected in by_part.items():
        assert await found(api, tenant.key, q=part) == expected, part
    assert await found(api, tenant.key, action="api_key.*") == whole[:3]
    assert await found(api, tenant.key, action="*") == whole
    assert await found(api, tenant.key, action="%*") == []
    assert await found(api, tenant.key, action="api_key.create") == whole[1:3]
    assert await found(api, tenant.key, action="api_key") == []
    assert await found(api, tenant.key, order="asc") == whole[::-1]
    first, second = (whole[at]["at"] for at in (2, 1))
    assert await found(api, tenant.key, start=second) == whole[:2]
    assert await found(api, tenant.key, end=second) == whole[2:]
    assert await found(api, tenant.key, start=first, end=second) == whole[2:3]
    assert await found(api, tenant.key, end="2001-01-01T00:00:00Z") == []
    assert await found(api, None, q=mine) == [
        each | {"actor_name": each["actor_name"]} for each in whole[:2]
    ]
    refused = await api.call(tenant.key, "GET", "/v1/audit_logs?order=up")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "order")


async def test_pages_of_a_search_hold_every_entry_once(api: Api) -> None:
    tenant = await api.new_tenant()
    for at in range(7):
        await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": f"{at}"})
    for order in ("asc", "desc"):
        query = {"q": "api_key.create", "order": order, "limit": "3"}
        seen: list[int] = []
        while True:
            page = (await api.call(tenant.key, "GET", "/v1/audit_logs", params=query)).json()
            seen += [each["seq"] for each in page["data"]]
            if not page["has_more"]:
                break
            query["after"] = page["last_id"]
        assert seen == sorted(range(2, 10), reverse=order == "desc")


async def test_actors_have_names(api: Api) -> None:
    """What keys are called now. A tenant sees of the operator only that it was the operator."""
    tenant = await api.new_tenant()
    made = {"name": "Olga's laptop", "role": "operator"}
    admin = (await api.admin("POST", "/admin/v1/admin_keys", json=made)).json()
    path = f"/admin/v1/tenants/{tenant.id}/api_keys"
    by_admin = (await api.call(admin["key"], "POST", path, json={"name": "robot"})).json()
    await api.call(by_admin["key"], "POST", "/v1/api_keys", json={})
    names = [each["actor_name"] for each in await found(api, tenant.key, limit="2")]
    assert names == ["robot", "operator"]
    names = [each["actor_name"] for each in await found(api, None, tenant_id=tenant.id, limit="2")]
    assert names == ["robot", "Olga's laptop"]
    own = await found(api, None, operator="true", limit="100")
    assert {each["chain"] for each in own} == {"operator"}
