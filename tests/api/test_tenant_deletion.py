"""A tenant that is deleted is suspended at once, can be restored for a while, and is erased then:
each table's rows and each object are looked at. Books and invoices stay, under a pseudonym."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import psycopg
import pytest

from adapter_files import adapter_form
from api_harness import Api, TestTenant, running_api, stored_objects
from people import signed_in
from platform_fixtures import Connection, MakeApi, Servers, plain_url
from price_lists import post_prices
from tenora_engine.telemetry import ServiceMeter, WaitPart
from tenora_platform.erasure.fates import CHANGED, DELETED, KEPT, condition
from tenora_platform.erasure.worker import Eraser
from tenora_platform.history.deltas import Totals
from tenora_platform.history.sampler import _add_served, _set_answers
from tenora_platform.registry.store_identity import Record
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.rejections.keeper import Call, Kind, RejectedCalls
from tenora_platform.settings import Settings
from tenora_platform.usage.sink import UsageSink
from tenora_platform.waits.requests import keep_request_waits
from usage_records import usage_record
from verification import problems_of

NAME = "a name to be forgotten"
SECRET = "the recipe is cinnamon"
LATER = timedelta(0)

_OTHERS_TENANTS = {
    "canaries": "tenant",
    "moved_days": "tenant",
    "reconciliations": "only_tenant",
    "share_minutes": "served",
    "usage_events": "tenant_no",
    "occupancy_events": "tenant_no",
    "wait_minutes": "waiter",
}
"""Columns that name a tenant and are not called tenant_id."""

_BY_OTHERS = {"sessions", "webhook_queue", "request_wait_parts", "people", "tenants"}
"""Decided on, too: their rows are a tenant's by what they refer to."""


def test_each_table_of_tenants_has_a_fate(owner: Connection) -> None:
    """A new one needs a decision in `erasure.fates` and a line in docs/privacy.md."""
    columns = owner.execute(
        "SELECT c.table_name, c.column_name FROM information_schema.columns c "
        "JOIN information_schema.tables t USING (table_schema, table_name) "
        "WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE'"
    ).fetchall()
    found = {table for table, column in columns if "tenant" in column}
    found |= {table for table, column in columns if _OTHERS_TENANTS.get(table) == column}
    found |= {
        str(table)
        for (table,) in owner.execute(
            "SELECT conrelid::regclass::text FROM pg_constraint "
            "WHERE contype = 'f' AND confrelid = 'tenants'::regclass"
        ).fetchall()
    }
    found = {table for table in found if not table.startswith("usage_events_")}  # partitions
    decided = [*DELETED, *CHANGED, *KEPT]
    assert len(decided) == len(set(decided))
    assert set(decided) == found | _BY_OTHERS
    page = Path(__file__).parents[2].joinpath("docs/privacy.md").read_text()
    assert [table for table in decided if f"`{table}`" not in page] == []


async def asked(api: Api, tenant: TestTenant, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": SECRET}]}
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)
    return answer.status_code


async def pushed(api: Api, tenant: TestTenant, name: str, seed: int) -> str:
    files = adapter_form(api.engine.model, name, seed=seed)
    made = (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).json()
    async with asyncio.timeout(30):
        while True:
            await IntakeWorker(api.state).run_once()
            path = f"/v1/adapters/{name}/versions/{made['version']}"
            found = (await api.call(tenant.key, "GET", path)).json()
            if found["state"] == "active":
                return str(found["digest"])
            await asyncio.sleep(0.02)


async def deleted(api: Api, tenant: TestTenant, **query: int) -> dict[str, Any]:
    path = f"/admin/v1/tenants/{tenant.id}"
    answer = await api.admin("DELETE", path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def get(api: Api, tenant: TestTenant) -> dict[str, Any]:
    found: dict[str, Any] = (await api.admin("GET", f"/admin/v1/tenants/{tenant.id}")).json()
    return found


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_it_can_be_restored(api: Api) -> None:
    tenant = await api.new_tenant(NAME, plan="premium")
    path = f"/admin/v1/tenants/{tenant.id}"
    await pushed(api, tenant, "mine", seed=71)
    person = await signed_in(api, (tenant.id, "owner"))
    said = await deleted(api, tenant)
    assert said["status"] == "suspended"
    until_ = datetime.fromisoformat(said["erase_after"])
    assert until_ - datetime.fromisoformat(said["deleted_at"]) == timedelta(days=7)
    refused = await api.call(tenant.key, "GET", "/v1/models")
    assert code_of(refused) == (403, "tenant_suspended")
    headers = {"x-tenora-tenant": tenant.id}
    assert (await person.call("GET", "/v1/models", headers=headers)).status_code in (401, 403)
    activate = await api.admin("PATCH", path, json={"status": "active"})
    assert code_of(activate) == (409, "tenant_deleted")
    assert await Eraser(api.state).run_once() == []
    back = await api.admin("POST", f"{path}/restore")
    assert (back.status_code, back.json()["status"]) == (200, "active")
    assert back.json()["erase_after"] is None
    assert await asked(api, tenant, "mine") == 200
    again = await api.admin("POST", f"{path}/restore")
    assert code_of(again) == (409, "tenant_not_deleted")
    entries = (await api.admin("GET", f"/admin/v1/audit_logs?tenant_id={tenant.id}")).json()
    actions = [entry["action"] for entry in entries["data"]]
    assert {"tenant.delete", "tenant.restore"} <= set(actions)


async def test_who_was_suspended_before_is_so_again(api: Api) -> None:
    tenant = await api.new_tenant(NAME)
    path = f"/admin/v1/tenants/{tenant.id}"
    await api.admin("PATCH", path, json={"status": "suspended"})
    first = await deleted(api, tenant, grace_days=3)
    second = await deleted(api, tenant, grace_days=30)  # longer, before it is over
    assert first["deleted_at"] == second["deleted_at"]
    assert second["erase_after"] > first["erase_after"]
    assert (await api.admin("POST", f"{path}/restore")).json()["status"] == "suspended"


async def test_the_setting(make_api: MakeApi) -> None:
    async with make_api(tenant_grace_days=2) as api:
        said = await deleted(api, await api.new_tenant(NAME))
        since, until_ = (
            datetime.fromisoformat(said[name]) for name in ("deleted_at", "erase_after")
        )
        assert until_ - since == timedelta(days=2)


@pytest.mark.parametrize("role", ["billing", "read_only", "metrics"])
async def test_only_operators_may(api: Api, role: str) -> None:
    tenant = await api.new_tenant(NAME)
    made = await api.admin("POST", "/admin/v1/admin_keys", json={"name": role, "role": role})
    for method, path in (("DELETE", ""), ("POST", "/restore")):
        answer = await api.call(made.json()["key"], method, f"/admin/v1/tenants/{tenant.id}{path}")
        assert answer.status_code == 403
    assert (await api.admin("DELETE", "/admin/v1/tenants/nobody")).status_code == 404


@pytest.fixture
async def own(
    settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    """Over a database of this test's own, in which any row can be made up: no worker reads it."""
    monkeypatch.setattr("tenora_platform.background.worker_work", lambda _: {})
    url = servers.new_database()
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        checks = link.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint "
            "WHERE contype = 'c' AND conrelid::regclass::text = ANY(%s)",
            [list(DELETED)],
        ).fetchall()
        for table, name in checks:
            link.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
    changes = {"database_url": url, "data_dir": tmp_path / "data"}
    async with running_api(settings.model_copy(update=changes), tmp_path) as api:
        yield api


def database(api: Api) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(plain_url(str(api.state.settings.database_url)), autocommit=True)


async def fill(api: Api, tenant: TestTenant, seed: int) -> str:
    """Something of the tenant's in every table; the person who belongs to it alone."""
    days = {"keep_contents_days": 7, "stored_response_days": 7}
    assert (await api.call(tenant.key, "PATCH", "/v1/settings", json=days)).is_success
    await pushed(api, tenant, "mine", seed)
    for model in ("mine", "fake-base"):
        assert await asked(api, tenant, model) == 200
    body = {"model": "fake-base", "input": SECRET}
    answer = await api.call(tenant.key, "POST", "/v1/responses", json=body)
    assert answer.json()["store"] is True, answer.text
    await api.state.contents.finish()
    await UsageSink(api.engine, api.state.db).store_what_waits()
    person = await signed_in(api, (tenant.id, "owner"), email="somebody@example.com")
    path = f"/admin/v1/tenants/{tenant.id}"
    assert (await api.http.post("/auth/session", json={"key": tenant.key})).is_success
    api.http.cookies.clear()
    profile = {"name": NAME, "address": "1 Street"}
    assert (await api.admin("PUT", f"{path}/billing_profile", json=profile)).is_success
    upload = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 8})).json()
    part = f"/v1/uploads/{upload['id']}/parts"
    assert (await api.call(tenant.key, "POST", part, files={"data": b"8 bytes."})).is_success
    with database(api) as link:
        for table in reversed(DELETED):
            if not rows(link, table, tenant.id):
                make_up(link, table, tenant.id)
                assert rows(link, table, tenant.id), table
    return person.id


_MADE_UP: dict[str, object] = {
    "integer": 1,
    "smallint": 1,
    "bigint": 1,
    "double precision": 1.0,
    "numeric": 1,
    "boolean": True,
    "timestamp with time zone": datetime.now(UTC),
    "jsonb": "{}",
    "bytea": b"x",
    "ARRAY": "{}",
}


def make_up(link: psycopg.Connection[tuple[Any, ...]], table: str, tenant_id: str) -> None:
    """A row where the platform has made none, whatever it says."""
    columns = link.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s "
        "AND table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL "
        "AND is_identity = 'NO'",
        [table],
    ).fetchall()
    own: dict[str, object] = {"text": tenant_id, "uuid": uuid5(NAMESPACE_OID, tenant_id)}
    made = {name: (_MADE_UP | own)[kind] for name, kind in columns}
    if condition(table).startswith("tenant_id = "):
        made["tenant_id"] = tenant_id
    if table == "webhook_queue":
        event = link.execute("SELECT id FROM events WHERE tenant_id = %s", [tenant_id]).fetchone()
        assert event is not None
        made["event_id"] = event[0]
    names, values = ", ".join(f'"{name}"' for name in made), ", ".join(["%s"] * len(made))
    with link.transaction():
        link.execute("SET LOCAL session_replication_role = replica")  # it may refer to nothing
        link.execute(f"INSERT INTO {table} ({names}) VALUES ({values})", list(made.values()))


def rows(link: psycopg.Connection[tuple[Any, ...]], table: str, tenant_id: str) -> int:
    where = condition(table).replace(":tenant", "%(t)s")
    found = link.execute(f"SELECT count(*) FROM {table} WHERE {where}", {"t": tenant_id})
    return int(found.fetchall()[0][0])


async def test_what_is_erased(own: Api) -> None:
    """Of this tenant everything, of another nothing, which has an adapter of the same content."""
    await own.put_plan("storing", {}, stored_responses=True)
    tenant, other = [await own.new_tenant(name, plan="storing") for name in (NAME, "other")]
    person = await fill(own, tenant, 72)
    stays = await signed_in(own, (tenant.id, "member"), (other.id, "owner"))
    shared = await pushed(own, other, "same", seed=74)
    assert await pushed(own, tenant, "shared", seed=74) == shared
    await fill(own, other, 73)
    before = stored_objects(own)
    with database(own) as link:
        kept = {table: rows(link, table, other.id) for table in DELETED}
        bill = books(link, tenant.id)
        assert bill["usage_days"]
    await deleted(own, tenant, grace_days=0)
    refused = await own.admin("POST", f"/admin/v1/tenants/{tenant.id}/restore")
    assert code_of(refused) == (409, "tenant_erased")
    own.engine.forgotten_namespaces.clear()
    namespace = own.engine.requests[0].tenant.namespace
    assert await Eraser(own.state).run_once() == [tenant.id]
    assert namespace in own.engine.forgotten_namespaces
    assert await Eraser(own.state).run_once() == []
    with database(own) as link:
        assert {table: rows(link, table, tenant.id) for table in DELETED} == dict.fromkeys(
            DELETED, 0
        )
        assert {table: rows(link, table, other.id) for table in DELETED} == kept
        assert books(link, tenant.id) == bill
        people = {row[0] for row in link.execute("SELECT id FROM people").fetchall()}
        assert person not in people
        assert stays.id in people
        assert_unsaid(link)
    await IntakeWorker(own.state, release_after=LATER).run_once()
    gone = before - stored_objects(own)
    left = {path for path in stored_objects(own) if path.startswith("adapters/")}
    assert any(path.startswith("uploads/") for path in gone)
    assert any(path.startswith("adapters/") for path in gone)
    assert any(shared.removeprefix("sha256:") in path for path in left), "the other's, too"
    assert await asked(own, other, "same") == 200
    seen = await get(own, tenant)
    assert seen["name"] == f"deleted {tenant.id[-8:]}"
    assert seen["erased_at"] is not None
    assert await problems_of(own.state) == []


def books(link: psycopg.Connection[tuple[Any, ...]], tenant_id: str) -> dict[str, list[Any]]:
    """What must be as it was."""
    tables = {"usage_days", "usage_hours", "usage_series", "invoices", "ledger_transactions"}
    assert tables <= set(KEPT)
    return {
        table: link.execute(
            f"SELECT t::text FROM {table} t WHERE tenant_id = %s ORDER BY 1", [tenant_id]
        ).fetchall()
        for table in tables
    }


def assert_unsaid(link: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Name and address of the tenant and its person are nowhere but where the page says so."""
    said = {"audit_logs", "billing_profiles"}
    for (table,) in link.execute(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
    ).fetchall():
        for words in (NAME, SECRET):
            found = link.execute(
                f"SELECT count(*) FROM {table} t WHERE t::text LIKE %s", [f"%{words}%"]
            ).fetchall()
            assert found == [(0,)] or table in said, (table, words)


async def test_nothing_is_made_for_who_was_erased(own: Api) -> None:
    tenant = await own.new_tenant(NAME)
    await deleted(own, tenant, grace_days=0)
    path = f"/admin/v1/tenants/{tenant.id}"
    assert await Eraser(own.state).run_once() == [tenant.id]
    for sub, body in (
        ("api_keys", {"name": "x"}),
        ("invitations", {"role": "owner"}),
        ("credits", {"amount": "5"}),
    ):
        made = await own.admin("POST", f"{path}/{sub}", json=body)
        assert code_of(made) == (409, "tenant_erased"), sub
    profile = await own.admin("PUT", f"{path}/billing_profile", json={"name": NAME})
    assert code_of(profile) == (409, "tenant_erased")
    priced = await post_prices(own, tenant=tenant.id)
    assert code_of(priced) == (409, "tenant_erased")
    assert code_of(await own.admin("DELETE", path)) == (409, "tenant_erased")
    assert (await own.call(tenant.key, "GET", "/v1/models")).status_code == 401


async def test_nobody_is_let_in_until_it_is_restored(api: Api) -> None:
    tenant = await api.new_tenant(NAME)
    path = f"/admin/v1/tenants/{tenant.id}"
    keys = (await api.admin("GET", f"{path}/api_keys")).json()["data"]
    await deleted(api, tenant)
    for sub, body in (
        ("api_keys", {"name": "x"}),
        (f"api_keys/{keys[0]['id']}/rotate", {}),
        ("invitations", {"role": "owner"}),
    ):
        made = await api.admin("POST", f"{path}/{sub}", json=body)
        assert code_of(made) == (409, "tenant_deleted"), sub
    assert (await api.admin("GET", f"{path}/api_keys")).json()["data"] == keys


async def test_what_waited_to_be_stored_is_not_written_of_who_was_erased(own: Api) -> None:
    """Refused calls, answers and the engine's counts that processes held; and waiting times of
    usage that comes late, whose event is kept as all books are."""
    tenant, other = [await own.new_tenant(name) for name in (NAME, "other")]
    await deleted(own, tenant, grace_days=0)
    assert await Eraser(own.state).run_once() == [tenant.id]
    both, now = (tenant.id, other.id), datetime.now(UTC)
    late = RejectedCalls(own.state.db, own.state.metrics)
    for each in both:
        call = Call(f"rej_{each}", Kind(each, None, "POST /v1/x", 400), now, "no")
        late._waiting[call.id] = call
    await late.flush()
    counted = Totals(meters=[ServiceMeter("default", each, output_tokens=5) for each in both])
    async with own.state.db.admin_session() as session:
        await _add_served(session, now, counted, Totals())
        answers = {(each, "default"): {"200": 3} for each in both}
        await _set_answers(session, now.replace(second=0, microsecond=0), answers)
    waited = [WaitPart("queue", "", 900.0)]
    records = [usage_record(f"late-{each}:0", each, waits=waited) for each in both]
    await keep_request_waits(own.state.db, records)
    for table in ("rejected_calls", "service_minutes", "service_hours", "request_waits"):
        with database(own) as link:
            assert rows(link, table, tenant.id) == 0, table
            assert rows(link, table, other.id) == 1, table


async def test_who_was_never_charged_leaves_no_address(own: Api) -> None:
    tenant = await own.new_tenant(NAME)
    path = f"/admin/v1/tenants/{tenant.id}/billing_profile"
    assert (await own.admin("PUT", path, json={"name": NAME})).is_success
    await deleted(own, tenant, grace_days=0)
    await Eraser(own.state).run_once()
    with database(own) as link:
        assert link.execute("SELECT count(*) FROM billing_profiles").fetchall() == [(0,)]


async def test_what_is_stored_meanwhile_is_erased_too(own: Api) -> None:
    """A response whose transaction began before the erasure and ends within it."""
    tenant = await own.new_tenant(NAME)
    await deleted(own, tenant, grace_days=0)
    with database(own) as link, database(own) as watching:
        link.execute("INSERT INTO tenant_settings (tenant_id) VALUES (%s)", [tenant.id])
        with link.transaction():
            link.execute("SELECT FROM tenant_settings WHERE tenant_id = %s FOR SHARE", [tenant.id])
            make_up(link, "stored_responses", tenant.id)
            erasing = asyncio.create_task(Eraser(own.state).run_once())
            async with asyncio.timeout(10):
                while watching.execute(  # noqa: ASYNC110 - the database tells nobody
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    " AND datname = current_database()"
                ).fetchall() == [(0,)]:
                    await asyncio.sleep(0.01)
        assert await erasing == [tenant.id]
        assert rows(link, "stored_responses", tenant.id) == 0


async def test_nobody_is_erased_beside_a_store_of_another_database(own: Api) -> None:
    """The database may be a restored one, in which a deletion that was taken back still stands."""
    tenant = await own.new_tenant(NAME)
    await own.state.store.problem()
    await deleted(own, tenant, grace_days=0)
    strange = Record("another", 7)
    record = await own.state.store.read()
    assert record is not None
    await own.state.store.write(strange)
    assert await Eraser(own.state).run_once() == []
    assert (await get(own, tenant))["erased_at"] is None
    await own.state.store.write(record)
    assert await Eraser(own.state).run_once() == [tenant.id]


async def test_two_workers_erase_once(own: Api) -> None:
    tenants = [await own.new_tenant(f"{NAME} {number}") for number in range(4)]
    for tenant in tenants:
        await deleted(own, tenant, grace_days=0)
    found = await asyncio.gather(*(Eraser(own.state).run_once() for _ in range(3)))
    erased = [tenant_id for each in found for tenant_id in each]
    assert sorted(erased) == sorted(tenant.id for tenant in tenants)


async def test_one_that_cannot_be_erased_keeps_no_other_waiting(own: Api) -> None:
    tenants = [await own.new_tenant(f"{NAME} {number}") for number in range(3)]
    for tenant in tenants:
        await deleted(own, tenant, grace_days=0)

    class Failing(Eraser):
        async def _erase(self, tenant_id: str) -> bool:
            if tenant_id == min(each.id for each in tenants):
                raise OSError("its objects cannot be deleted")
            return await super()._erase(tenant_id)

    with pytest.raises(OSError, match="its objects"):
        await Failing(own.state).run_once()
    assert await Eraser(own.state).run_once() == [min(each.id for each in tenants)]


async def test_append_only_tables_stay_so_for_others(own: Api) -> None:
    tenant = await own.new_tenant("stays", plan="premium")
    await pushed(own, tenant, "mine", seed=75)
    with database(own) as link:
        assert rows(link, "events", tenant.id)
        for statement in ("DELETE FROM events", "UPDATE events SET type = 'x'", "TRUNCATE events"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                link.execute(f"{statement} CASCADE" if "TRUNC" in statement else statement)


async def test_the_canary_is_not_deleted(own: Api) -> None:
    tenant = await own.new_tenant("canary")
    with database(own) as link:
        link.execute("INSERT INTO canaries (role, tenant) VALUES ('made up', %s)", [tenant.id])
    answer = await own.admin("DELETE", f"/admin/v1/tenants/{tenant.id}")
    assert code_of(answer) == (409, "tenant_in_use")
