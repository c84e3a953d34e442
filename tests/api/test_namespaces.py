"""Whose a namespace is: noted as it is first looked for, and anew after a change of trust group."""

from __future__ import annotations

from api_harness import Api
from platform_fixtures import Connection
from tenora_platform.auth import tenant_namespace
from tenora_platform.tenants.namespaces import owners_of


async def whose(api: Api, *namespaces: str) -> dict[str, list[str]]:
    async with api.state.db.admin_session() as session:
        found = await owners_of(session, api.state.secret, namespaces)
        return {each: [row.id for row in rows] for each, rows in found.items()}


async def test_a_namespace_has_its_tenants(api: Api, owner: Connection) -> None:
    one, two = await api.new_tenant("one"), await api.new_tenant("two")
    secret = api.state.secret
    own = {each.id: tenant_namespace(secret, each.id, None) for each in (one, two)}
    both = tenant_namespace(secret, one.id, "together")
    assert await whose(api, *own.values(), both, "nobody's") == {
        own[one.id]: [one.id],
        own[two.id]: [two.id],
    }
    assert await whose(api) == {}
    for each in (one, two):
        path = f"/admin/v1/tenants/{each.id}"
        assert (await api.admin("PATCH", path, json={"trust_group": "together"})).is_success
        assert (await api.admin("PATCH", path, json={"name": "still"})).is_success
    assert await whose(api, *own.values(), both) == {both: sorted([one.id, two.id])}
    path = f"/admin/v1/tenants/{one.id}"
    assert (await api.admin("PATCH", path, json={"trust_group": None})).is_success
    assert await whose(api, *own.values(), both) == {own[one.id]: [one.id], both: [two.id]}
    told = (await api.admin("GET", f"/admin/v1/audit_logs?target={one.id}")).json()["data"]
    assert all("namespace" not in str(each) for each in told)


async def test_who_only_reads_waits_for_nobody(api: Api, owner: Connection) -> None:
    """A tenant that somebody is changing is noted the next time."""
    tenant = await api.new_tenant("held")
    namespace = tenant_namespace(api.state.secret, tenant.id, None)
    with owner.transaction():
        owner.execute("SELECT FROM tenants WHERE id = %s FOR NO KEY UPDATE", (tenant.id,))
        assert await whose(api, namespace) == {}
    assert await whose(api, namespace) == {namespace: [tenant.id]}
