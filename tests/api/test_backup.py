"""A backup that was made while the platform served becomes, on an empty machine, the same
installation with the same books."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import psycopg
import pytest
from obstore.store import LocalStore, MemoryStore

from adapter_files import adapter_form
from api_harness import SECRET, Api, TestTenant, running_api, stored_objects
from backup_places import made, refused, restored
from books import reconcile, record, store
from platform_fixtures import Servers, plain_url, with_database
from signed_store import signed_store
from tenora_platform.audit.witness import OBJECT as COPY_OF_ENDS
from tenora_platform.backup import making
from tenora_platform.backup.objects import copy_out, kept_objects
from tenora_platform.backup.place import BackupError, Place
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import Base, DatabaseUrls, libpq_url, psycopg_url
from tenora_platform.embedded.servers import running_servers
from tenora_platform.erasure.worker import Eraser
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.jobs import repository as jobs
from tenora_platform.receipts.document import verify
from tenora_platform.receipts.keys import read_key_set
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.store_identity import OBJECT
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings
from tenora_platform.usage.partitions import UsageMonths
from whole_installation import Whole, check_all, fill, go_on, noon, tables, tenora

BY_THEMSELVES = frozenset(
    {"reconciliations", "moved_days", "history_marks", "webhook_queue"}
    | {f"{what}_{span}" for what in ("engine", "service") for span in ("minutes", "hours")}
)
"""Tables in which a platform that serves writes by itself."""


async def test_an_installation_is_the_same_on_an_empty_machine(
    own: Settings, machine: Settings, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        whole = await fill(api, events=1000, adapters=20)
        kept = stored_objects(api)
        (own.data_dir / "admin_keys").write_text("hash-of-a-key\n")
        await made(own, tmp_path / "backup", "--with-secret")
    before = tables(str(own.database_url))
    code, text = await asyncio.to_thread(
        tenora, machine, "restore", str(tmp_path / "backup"), secret=None
    )
    assert code == 0, text
    assert "1002 events, 2 invoices, 1000 receipts" in text
    assert machine.server_secret().root == SECRET.encode()
    assert (machine.data_dir / "admin_keys").read_text() == "hash-of-a-key\n"
    with running_servers(machine, machine.server_secret()) as ready:
        after = tables(str(ready.database_url))
        assert len(after.pop("audit_logs")) == len(before.pop("audit_logs")) + 1
        changed = {name for name in before if before[name] != after[name]}
        assert changed <= BY_THEMSELVES | {"audit_heads", "audit_verified"}
        async with running_api(ready, tmp_path / "2") as api:
            await serves_on(api, whole, kept)


async def test_a_restore_goes_on_with_no_job(
    own: Settings, empty: Settings, tmp_path: Path
) -> None:
    """One that waited or ran when the backup was made has failed, and says so."""
    kinds = ("audit_verification", "invoices")
    async with running_api(own, tmp_path / "1") as api, api.state.db.admin_session() as session:
        for kind in kinds:
            row = await jobs.ask(session, kind, {"mode": "full"}, "admin_key:x")
            row.not_before = datetime.now(UTC) + timedelta(hours=1)
            row.state = "running" if kind == "invoices" else "waiting"
    await made(own, tmp_path / "backup")
    await restored(empty, tmp_path / "backup")
    found = tables(str(empty.database_url))["jobs"]
    assert len(found) == len(kinds)
    assert all("failed" in str(each) and "Restored from" in str(each) for each in found)


async def test_a_restore_erases_nobody_whose_time_is_over(
    own: Settings, empty: Settings, tmp_path: Path
) -> None:
    """It is named, stays suspended with all it has, and goes when the operator says so again."""
    async with running_api(own, tmp_path / "1") as api:
        leaving, back = await api.new_tenant("leaving"), await api.new_tenant("comes back")
        for each in (leaving, back):
            await api.admin("DELETE", f"/admin/v1/tenants/{each.id}?grace_days=3")
    with psycopg.connect(plain_url(str(own.database_url)), autocommit=True) as link:
        link.execute(
            "UPDATE tenants SET erase_after = now() - interval '1 day' WHERE "
            "erase_after IS NOT NULL"
        )
    await made(own, tmp_path / "backup")
    text = await restored(empty, tmp_path / "backup")
    assert "2 deleted tenants are not erased until you confirm it" in text
    assert leaving.id in text
    there = empty.model_copy(update={"redis_url": own.redis_url})
    async with running_api(there, tmp_path / "2") as api:
        assert await Eraser(api.state).run_once() == []
        shown = (await api.admin("GET", f"/admin/v1/tenants/{leaving.id}")).json()
        assert (shown["status"], shown["name"]) == ("suspended", "leaving")
        assert (shown["erase_after"], shown["erased_at"]) == (None, None)
        assert shown["deleted_at"] is not None
        taken = await api.admin("POST", f"/admin/v1/tenants/{back.id}/restore")
        assert taken.json()["status"] == "active"
        await api.admin("DELETE", f"/admin/v1/tenants/{leaving.id}?grace_days=0")
        await Eraser(api.state).run_once()
        shown = (await api.admin("GET", f"/admin/v1/tenants/{leaving.id}")).json()
        assert shown["erased_at"] is not None
        entries = (await api.admin("GET", "/admin/v1/audit_logs?limit=100")).json()["data"]
        held = [each["target"] for each in entries if each["action"] == "tenant.hold_erasure"]
        assert set(held) == {leaving.id, back.id}


async def serves_on(api: Api, whole: Whole, kept: set[str]) -> None:
    """The old keys, receipts and upload; and new rows beside the old ones."""
    assert stored_objects(api) == kept
    listed = (await api.call(whole.tenant.key, "GET", "/v1/adapters")).json()["data"]
    assert {each["state"] for each in listed} == {"active"}
    assert len(listed) == 10
    keys = (await api.http.get("/.well-known/tenora-keys.json")).json()
    assert verify(whole.receipt, read_key_set(keys))["tenant_id"] == whole.tenant.id
    contents = f"/v1/requests/{json.loads(whole.receipt)['id']}/contents"
    assert "recipe" in (await api.call(whole.tenant.key, "GET", contents)).text
    assert await go_on(api, whole) == "active"
    new = await api.new_tenant("new")
    await store(api, [record(each.id, noon(0) + 7000) for each in (whole.tenant, new)])
    run = await reconcile(api)
    assert run["agrees"], run["named"]
    assert run["looked"]["events"] == 1004
    warnings = (await api.http.get("/readyz")).json()["warnings"]
    assert not any("object store" in each for each in warnings), warnings


async def test_what_is_written_meanwhile_leaves_a_whole_backup(
    own: Settings, empty: Settings, tmp_path: Path
) -> None:
    """Events, uploads that come and go, adapters deleted and tenants made while it runs. A table
    that an extension brought is in nobody's way."""
    async with running_api(own, tmp_path / "1") as api:
        await fill(api, events=60, adapters=4)
        going = asyncio.create_task(busy(api))
        await made(own, tmp_path / "backup")
        going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going
    with psycopg.connect(plain_url(str(empty.database_url)), autocommit=True) as link:
        link.execute(
            "CREATE TABLE of_an_extension (); ALTER EXTENSION plpgsql ADD TABLE of_an_extension"
        )
    await restored(empty, tmp_path / "backup")


async def busy(api: Api) -> None:
    for number in itertools.count():
        tenant = await api.new_tenant(f"busy-{number}", plan="premium")
        await store(api, [record(tenant.id, noon(0) + each) for each in range(5)])
        files = adapter_form(api.engine.model, "mine", seed=1000 + number)
        await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        await IntakeWorker(api.state).run_once()
        await api.call(tenant.key, "DELETE", "/v1/adapters/mine")


async def test_what_the_rows_of_its_moment_own_is_not_deleted_meanwhile(
    own: Settings, empty: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between database and objects an upload is cancelled, one is checked, an adapter is deleted,
    released and swept, and a tenant with half an upload is erased; months would leave the
    database."""
    async with running_api(own, tmp_path / "1") as api:
        whole = await fill(api)
        api.state.engine_life.started = False
        waiting = adapter_form(api.engine.model, "waits", seed=7)
        await api.call(whole.tenant.key, "POST", "/v1/adapters", files=waiting)
        leaves = await half_upload(api)
        kept = stored_objects(api)
        loop = asyncio.get_running_loop()

        def after_all_is_gone(*of: object) -> object:
            asyncio.run_coroutine_threadsafe(everything_goes(api, whole, leaves), loop).result(60)
            return copy_out(*of)  # type: ignore[arg-type]

        monkeypatch.setattr(making, "copy_out", after_all_is_gone)
        await made(own, tmp_path / "backup")
        monkeypatch.undo()
        assert kept <= stored_objects(api), "left to the sweep after the backup"
        make_old(own)
        await api.state.store.problem()
        assert await Collector(api.state).sweep() > 0
        assert not [path for path in stored_objects(api) if whole.upload_id in path]
    await restored(empty, tmp_path / "backup")
    async with running_api(empty.model_copy(update={"redis_url": own.redis_url}), tmp_path) as api:
        assert stored_objects(api) >= kept
        assert await go_on(api, whole) == "active"
        found = (await api.call(whole.tenant.key, "GET", "/v1/adapters/waits")).json()
        assert found["state"] == "active"


async def half_upload(api: Api) -> TestTenant:
    tenant = await api.new_tenant("leaves")
    upload = (await api.call(tenant.key, "POST", "/v1/uploads", json={"bytes": 16})).json()
    path = f"/v1/uploads/{upload['id']}/parts"
    sent = await api.call(tenant.key, "POST", path, files={"data": b"8 bytes."})
    assert sent.status_code == 200, sent.text
    return tenant


async def everything_goes(api: Api, whole: Whole, leaves: TestTenant) -> None:
    await api.admin("DELETE", f"/admin/v1/tenants/{leaves.id}", params={"grace_days": 0})
    await Eraser(api.state).run_once()
    gone = (await api.admin("GET", f"/admin/v1/tenants/{leaves.id}")).json()
    assert gone["erased_at"] is not None
    path = f"/v1/uploads/{whole.upload_id}/cancel"
    assert (await api.call(whole.tenant.key, "POST", path)).status_code == 200
    gone = await api.call(whole.tenant.key, "DELETE", "/v1/adapters/adapter-0")
    assert gone.status_code == 200, gone.text
    api.state.engine_life.started = True
    await check_all(api)
    worker = IntakeWorker(api.state, release_after=datetime.resolution)
    while await worker.run_once():
        pass
    assert await Collector(api.state, grace=datetime.resolution).sweep() == 0
    months = UsageMonths(api.state.db, None, api.state.store, api.state.metrics, 1)  # type: ignore[arg-type]
    assert await months.run_once(datetime(2100, 1, 1, tzinfo=UTC).date()) == []


def make_old(settings: Settings) -> None:
    """Everything in the store was written two hours ago, and the store adopted then."""
    then = time.time() - 7200
    for path in (settings.data_dir / "objects").rglob("*"):
        os.utime(path, (then, then))
    with psycopg.connect(plain_url(str(settings.database_url)), autocommit=True) as link:
        link.execute("UPDATE database_identity SET adopted_at = adopted_at - interval '2 hours'")


def test_the_migrations_make_what_a_backup_reads(servers: Servers) -> None:
    """Every table is known, and is read either by the operator's role or tenant by tenant; triggers
    and row-level security are as before once a restore is over."""
    import tenora_platform.app  # noqa: F401 - every room's tables

    with psycopg.connect(plain_url(servers.new_database())) as link:
        found = link.execute(
            "SELECT relname, has_table_privilege(%s, oid, 'SELECT'), EXISTS (SELECT FROM pg_policy"
            " WHERE polrelid = pg_class.oid AND polcmd IN ('*', 'r')"
            " AND pg_get_expr(polqual, polrelid) = 'true') OR NOT relrowsecurity,"
            " EXISTS (SELECT FROM pg_attribute WHERE attrelid = pg_class.oid"
            " AND attname = 'tenant_id')"
            " FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'",
            (DEFAULT.admin_role,),
        ).fetchall()
        assert {name for name, *_ in found} == set(Base.metadata.tables)
        hidden = {name for name, may, all_rows, _ in found if not (may and all_rows)}
        assert hidden == {"kept_contents", "stored_responses"}
        assert all(of_tenant for name, *_, of_tenant in found if name in hidden)
        free = link.execute(
            "SELECT relname FROM pg_class s WHERE relkind = 'S' AND NOT EXISTS (SELECT FROM"
            " pg_depend d WHERE d.objid = s.oid AND d.deptype IN ('a', 'i'))"
        ).fetchall()
        assert free == []


def guards(url: str, urls: DatabaseUrls) -> list[tuple[object, ...]]:
    """What keeps rows as they are: triggers, row-level security, constraints, owners, grants."""
    queries = (
        "SELECT tgrelid::regclass::text, tgname, tgenabled::text FROM pg_trigger"
        " WHERE NOT tgisinternal",
        "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class"
        " WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace",
        "SELECT conrelid::regclass::text, conname, convalidated FROM pg_constraint"
        " WHERE connamespace = current_schema()::regnamespace",
        "SELECT relname, relacl::text FROM pg_class WHERE relkind IN ('r', 'p', 'v')"
        " AND relnamespace = current_schema()::regnamespace",
    )
    owner = str(urls.owner.username)
    with psycopg.connect(url) as link:
        return sorted(
            tuple(str(value).replace(owner, "owner") for value in row)
            for query in queries
            for row in link.execute(query.encode())
        )


async def test_an_owner_whom_row_level_security_binds(
    servers: Servers, own: Settings, empty: Settings, tmp_path: Path
) -> None:
    """An installation by another name, in a schema of its own, on a server where its user is an
    ordinary one; with values that are hard to write down."""
    name = Installation("azure")
    named = {"installation": name.name, "object_store": None}
    old, new = (
        each.model_copy(update={**named, "database_url": ordinary_owner(servers)})
        for each in (own, empty)
    )
    urls = [database_urls(str(each.database_url), servers.secret, name) for each in (old, new)]
    prepare_database(urls[0])
    async with running_api(old, tmp_path / "1") as api:
        whole = await fill(api)
        odd = "\\N\t\\.\n\"ä\r'; %s 株 \\x00"
        await api.admin("PATCH", f"/admin/v1/tenants/{whole.other.id}", json={"name": odd})
    await made(old, tmp_path / "backup")
    await restored(new, tmp_path / "backup")
    places = [libpq_url(each.owner) for each in urls]
    assert guards(places[0], urls[0]) == guards(places[1], urls[1])
    before, after = (tables(place) for place in places)
    for hidden in ("kept_contents", "stored_responses"):
        assert before[hidden] == after[hidden]
    assert {each for each in before if before[each] != after[each]} <= BY_THEMSELVES | {
        "audit_logs",
        "audit_heads",
        "audit_verified",
    }


def ordinary_owner(servers: Servers) -> str:
    role = f"ordinary_{next(servers.numbers)}"
    servers.execute("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 's+e c%ret'", role)
    servers.execute("CREATE DATABASE {} OWNER {}", role, role)
    url = psycopg_url(with_database(servers.postgres_url, role))
    url = url.set(username=role, password="s+e c%ret").update_query_dict(
        {"options": "-c work_mem=8MB"}
    )
    return url.render_as_string(hide_password=False)


def test_nothing_is_held_in_memory_whole(own: Settings, empty: Settings, tmp_path: Path) -> None:
    """A table of 48 MB as COPY writes it, which hardly compress, and an object of 96 MB."""
    with psycopg.connect(plain_url(str(own.database_url)), autocommit=True) as link:
        link.execute(
            "INSERT INTO idempotency_keys (caller_id, key, target, answer)"
            " SELECT 'caller', n::text, '/', (SELECT string_agg(sha256((n * 8192 + i)::text::bytea)"
            ", ''::bytea) FROM generate_series(1, 8192) i) FROM generate_series(1, 96) n"
        )
    objects = LocalStore(prefix=own.data_dir / "objects", mkdir=True)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(96 * 1024**2)
    obstore.put(objects, "uploads/upload_x/large", tmp_path / "large")
    peaks = []
    for words in (("backup", str(tmp_path / "b")), ("restore", str(tmp_path / "b"))):
        tracemalloc.start()
        settings = own if words[0] == "backup" else empty
        code, text = tenora(settings, *words)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert code == 0, text
    assert max(peaks) < 48 * 1024**2, peaks
    assert (empty.data_dir / "objects/uploads/upload_x/large").stat().st_size == 96 * 1024**2


def test_a_file_that_is_not_written_to_its_end_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    place = Place(str(tmp_path / "place"))

    def broken(size: int) -> Iterator[bytes]:
        yield bytes(size)
        raise BackupError("the database has gone")

    for size in (1, 20 * 1024**2):
        with pytest.raises(BackupError, match="the database has gone"):
            place.write("a/b", broken(size))
        assert place.content("a/b") is None
    assert b"".join(place.read(place.write("a/empty", []))) == b""


def test_the_record_of_the_database_and_the_trash_stay_where_they_are(
    source: tuple[Path, Whole], settings: Settings
) -> None:
    assert (settings.data_dir / "objects" / OBJECT).exists()
    folder = source[0] / "objects"
    assert {path.name for path in folder.iterdir()} == {"adapters", "uploads"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in source[0].rglob("*"))


def test_the_copy_of_the_audit_logs_ends_stays_where_it_is() -> None:
    """It may be of a later moment than the rows of the backup."""
    objects = MemoryStore()
    for path in (OBJECT, COPY_OF_ENDS, "uploads/upload_a/part"):
        obstore.put(objects, path, b"x")
    assert list(kept_objects(objects)) == ["uploads/upload_a/part"]


async def test_a_backup_in_an_object_store(
    own: Settings, empty: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is the last object that is written; parts of nothing are left."""
    async with running_api(own, tmp_path / "1") as api:
        await fill(api)
        large = os.urandom(12 * 1024**2)
        await obstore.put_async(api.state.objects, "uploads/upload_x/large", large)
    with signed_store() as bucket:
        for name, value in {
            "AWS_ENDPOINT_URL": bucket.url,
            "AWS_ACCESS_KEY_ID": bucket.key,
            "AWS_SECRET_ACCESS_KEY": bucket.secret,
            "AWS_REGION": "eu-central-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        }.items():
            monkeypatch.setenv(name, value)
        place = "s3://bucket/nights/1"
        code, text = await asyncio.to_thread(tenora, own, "backup", place, "--with-secret")
        assert code == 0, text
        assert list(bucket.objects)[-1] == "bucket/nights/1/manifest.json"
        assert bucket.objects["bucket/nights/1/objects/uploads/upload_x/large"] == large
        assert not bucket.parts
        assert "is not empty" in await asyncio.to_thread(refused, own, "backup", place)
        later = empty.data_dir / "objects" / COPY_OF_ENDS  # of entries that the backup has not
        later.parent.mkdir(parents=True, exist_ok=True)
        later.write_text("a copy")
        code, text = await asyncio.to_thread(tenora, empty, "restore", place)
        assert code == 0, text
        assert not later.exists()
        manifest = bucket.objects.pop("bucket/nights/1/manifest.json")
        assert "no complete backup" in await asyncio.to_thread(refused, own, "restore", place)
        bucket.objects["bucket/nights/1/manifest.json"] = manifest
        bucket.objects["bucket/nights/1/secret"] = b"another"
        assert "is damaged" in await asyncio.to_thread(refused, own, "restore", place)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of somebody else")
        text = await asyncio.to_thread(refused, own, "backup", "s3://bucket/nights/2")
        assert "s3://bucket/nights/2 cannot be" in text
    assert (empty.data_dir / "objects/uploads/upload_x/large").read_bytes() == large
