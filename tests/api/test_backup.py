"""A backup that was made while the platform served becomes, on an empty machine, the same
installation with the same books; whatever is missing, damaged or in the way is said first."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import obstore
import psycopg
import pytest
import redis
from obstore.store import LocalStore

from adapter_files import adapter_form
from api_harness import SECRET, Api, running_api, stored_objects
from books import reconcile, record, store
from platform_fixtures import Servers, plain_url, with_database
from signed_store import signed_store
from small_disk import small_disk
from tenora_platform.backup import making, restoring
from tenora_platform.backup.dump import nothing_deleted
from tenora_platform.backup.manifest import encode, read_manifest, sealed
from tenora_platform.backup.objects import copy_out
from tenora_platform.backup.place import BackupError, Place
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import Base, DatabaseUrls, libpq_url, psycopg_url
from tenora_platform.embedded.servers import running_servers
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.receipts.document import verify
from tenora_platform.receipts.keys import read_key_set
from tenora_platform.registry.collector import Collector
from tenora_platform.registry.store_identity import OBJECT
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings
from tenora_platform.usage.partitions import UsageMonths
from whole_installation import Whole, check_all, fill, go_on, noon, tables, tenora

BY_THEMSELVES = frozenset(
    {"reconciliations", "reconciled_days", "history_marks", "webhook_queue"}
    | {f"{what}_{span}" for what in ("engine", "service") for span in ("minutes", "hours")}
)
"""Tables in which a platform that serves writes by itself."""


@pytest.fixture
def own(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An installation of this test's own."""
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    return settings.model_copy(update=changes)


@pytest.fixture
def machine(settings: Settings, tmp_path: Path) -> Settings:
    """One on which nothing is, not even the secret: it has servers of its own."""
    changes = {"data_dir": tmp_path / "machine", "database_url": None, "redis_url": None}
    return settings.model_copy(update={**changes, "secret": None})


@pytest.fixture
def empty(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An empty place at the operator's own server."""
    return settings.model_copy(
        update={
            "data_dir": tmp_path / "empty",
            "database_url": empty_database(servers),
            "redis_url": None,
        }
    )


def empty_database(servers: Servers) -> str:
    name = f"empty_{next(servers.numbers)}"
    servers.execute("CREATE DATABASE {}", name)
    return with_database(servers.postgres_url, name)


@pytest.fixture(scope="module")
async def source(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Whole]:
    """A backup of a small installation, with its secret."""
    folder = tmp_path_factory.mktemp("source")
    async with running_api(settings, folder) as api:
        whole = await fill(api)
    code, text = await asyncio.to_thread(
        tenora, settings, "backup", str(folder / "backup"), "--with-secret"
    )
    assert code == 0, text
    return folder / "backup", whole


@pytest.fixture
def backup(source: tuple[Path, Whole], tmp_path: Path) -> Path:
    """A copy that the test may damage."""
    return shutil.copytree(source[0], tmp_path / "backup")


async def made(settings: Settings, to: Path, *words: str) -> str:
    code, text = await asyncio.to_thread(tenora, settings, "backup", str(to), *words)
    assert code == 0, text
    return text


async def restored(settings: Settings, backup: Path) -> str:
    code, text = await asyncio.to_thread(tenora, settings, "restore", str(backup))
    assert code == 0, text
    return text


def refused(settings: Settings, *words: str, secret: str | None = SECRET) -> str:
    """The one sentence."""
    code, text = tenora(settings, *words, secret=secret)
    assert code == 1, text
    assert "Traceback" not in text
    assert text.count("tenora:") == 1, text
    return text


def untouched(settings: Settings) -> None:
    """No restore has written anything there."""
    assert not settings.data_dir.exists() or not any(settings.data_dir.rglob("?*"))
    if settings.database_url is not None:
        with psycopg.connect(plain_url(settings.database_url)) as link:
            found = link.execute("SELECT relname FROM pg_class WHERE relname = 'tenants'")
            assert found.fetchone() is None


async def test_an_installation_is_the_same_on_an_empty_machine(
    own: Settings, machine: Settings, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        whole = await fill(api, events=1000, adapters=20)
        kept = stored_objects(api)
        (own.data_dir / "admin_keys").write_text("hash of a key\n")
        await made(own, tmp_path / "backup", "--with-secret")
    before = tables(str(own.database_url))
    code, text = await asyncio.to_thread(
        tenora, machine, "restore", str(tmp_path / "backup"), secret=None
    )
    assert code == 0, text
    assert "1001 events, 2 invoices, 1000 receipts" in text
    assert machine.server_secret().root == SECRET.encode()
    assert (machine.data_dir / "admin_keys").read_text() == "hash of a key\n"
    with running_servers(machine, machine.server_secret()) as ready:
        after = tables(str(ready.database_url))
        assert len(after.pop("audit_logs")) == len(before.pop("audit_logs")) + 1
        assert {name for name in before if before[name] != after[name]} <= BY_THEMSELVES
        async with running_api(ready, tmp_path / "2") as api:
            await serves_on(api, whole, kept)


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
    assert run["looked"]["events"] == 1003
    warnings = (await api.http.get("/readyz")).json()["warnings"]
    assert not any("object store" in each for each in warnings), warnings


async def test_what_is_written_meanwhile_leaves_a_whole_backup(
    own: Settings, empty: Settings, tmp_path: Path
) -> None:
    """Events, uploads that come and go, adapters deleted and tenants made while it runs."""
    async with running_api(own, tmp_path / "1") as api:
        await fill(api, events=60, adapters=4)
        going = asyncio.create_task(busy(api))
        await made(own, tmp_path / "backup")
        going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going
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
    """Between database and objects an upload is cancelled, one is checked, and an adapter is
    deleted, released and swept; months would leave the database."""
    async with running_api(own, tmp_path / "1") as api:
        whole = await fill(api)
        api.state.engine_life.started = False
        waiting = adapter_form(api.engine.model, "waits", seed=7)
        await api.call(whole.tenant.key, "POST", "/v1/adapters", files=waiting)
        kept = stored_objects(api)
        loop = asyncio.get_running_loop()

        def after_all_is_gone(*of: object) -> object:
            asyncio.run_coroutine_threadsafe(everything_goes(api, whole), loop).result(60)
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


async def everything_goes(api: Api, whole: Whole) -> None:
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
    months = UsageMonths(api.state.db, None, api.state.metrics, 1)  # type: ignore[arg-type]
    assert await months.run_once(datetime(2100, 1, 1, tzinfo=UTC).date()) == []


def make_old(settings: Settings) -> None:
    """Everything in the store was written two hours ago, and the store adopted then."""
    then = time.time() - 7200
    for path in (settings.data_dir / "objects").rglob("*"):
        os.utime(path, (then, then))
    with psycopg.connect(plain_url(str(settings.database_url)), autocommit=True) as link:
        link.execute("UPDATE database_identity SET adopted_at = adopted_at - interval '2 hours'")


# What a backup refuses


async def test_a_place_that_is_not_empty_or_in_the_store(
    own: Settings, tmp_path: Path, servers: Servers
) -> None:
    async with running_api(own, tmp_path / "1"):
        pass
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("precious")
    assert "is not empty" in refused(own, "backup", str(there))
    assert (there / "mine").read_text() == "precious"
    inside = own.data_dir / "objects" / "backup"
    assert "lies in the object store" in refused(own, "backup", str(inside))
    assert not inside.exists()
    (tmp_path / "file").write_text("a file")
    assert "a file is in its place" in refused(own, "backup", str(tmp_path / "file"))
    urls = database_urls(str(own.database_url), servers.secret, DEFAULT)
    with nothing_deleted(urls):
        assert "Another backup" in refused(own, "backup", str(tmp_path / "second"))
    with psycopg.connect(plain_url(str(own.database_url)), autocommit=True) as link:
        link.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "newer one" in refused(own, "backup", str(tmp_path / "newer"))


async def test_a_full_disk_leaves_no_backup(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await obstore.put_async(api.state.objects, "uploads/x/large", os.urandom(4 * 1024**2))
    with small_disk(tmp_path / "disk", 2 * 1024**2) as folder:
        text = refused(own, "backup", str(folder / "backup"))
        assert "No space left on device" in text
        left = refused(own, "restore", str(folder / "backup"))
    assert "no complete backup" in left


@contextmanager
def command(settings: Settings, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """As a process, killed at the end of the block."""
    named = {
        "TENORA_DATABASE_URL": str(settings.database_url),
        "TENORA_DATA_DIR": str(settings.data_dir),
        "TENORA_SECRET": SECRET,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tenora_platform.cli.main", *words], env={**os.environ, **named}
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_for(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def test_killed_commands(own: Settings, empty: Settings, tmp_path: Path) -> None:
    """A backup that was killed is none, and holds up nothing; a restore that was killed is refused
    by everything else, and goes on."""
    async with running_api(own, tmp_path / "1") as api:
        await fill(api)
        large = own.data_dir / "objects" / "uploads" / "upload_x" / "large"
        large.parent.mkdir()
        with large.open("wb") as file:
            file.truncate(1024**3)  # zeros: it takes a while to copy, not to make
    first, second = tmp_path / "first", tmp_path / "second"
    with command(own, "backup", str(first)) as process:
        wait_for(process, (first / "objects").exists)
    assert not (first / "manifest.json").exists()
    assert "no complete backup" in refused(empty, "restore", str(first))
    os.truncate(large, 64 * 1024**2)
    await made(own, second)
    with command(empty, "restore", str(second)) as process:
        wait_for(process, (empty.data_dir / "objects" / "adapters").exists)
    for words in (("migrate",), ("store", "status"), ("backup", str(tmp_path / "third"))):
        text = await asyncio.to_thread(refused, empty, *words)
        assert "has not come to its end" in text
    with command(empty, "restore", str(second)) as process:
        large = empty.data_dir / "objects" / "uploads" / "upload_x" / "large"
        large.unlink(missing_ok=True)
        wait_for(process, large.exists)
        process.send_signal(signal.SIGSTOP)
        text = await asyncio.to_thread(refused, empty, "restore", str(second))
        assert "Another restore" in text
    other = shutil.copytree(second, tmp_path / "other")
    change_manifest(other, at="2020-01-01T00:00:00Z", secret=SECRET)
    assert "another backup" in refused(empty, "restore", str(other))
    await restored(empty, second)
    assert tenora(empty, "migrate")[0] == 0


# What a restore refuses


def change_manifest(backup: Path, secret: str | None = None, **changes: object) -> None:
    """By hand; with the secret, sealed anew."""
    path = backup / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    if secret is not None:
        whole = read_manifest(Place(str(backup)))
        path.write_bytes(encode(sealed(whole, ServerSecret(secret.encode()))))


def test_a_backup_without_a_manifest(backup: Path, empty: Settings) -> None:
    (backup / "manifest.json").unlink()
    assert "no complete backup" in refused(empty, "restore", str(backup))
    assert "is no folder" in refused(empty, "restore", str(backup / "nowhere"))
    (backup / "manifest.json").write_text("{")
    assert "cannot be read" in refused(empty, "restore", str(backup))
    untouched(empty)


@pytest.mark.parametrize(
    "pattern",
    ["secret", "database/usage_events.copy.gz", "objects.jsonl.gz", "objects/adapters/*/*.json",
     "objects/uploads/*/*"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_damaged_file_of_a_backup(pattern: str, how: str, backup: Path, empty: Settings) -> None:
    path = next(backup.glob(pattern))
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if how == "changed" else b""))
    text = refused(empty, "restore", str(backup))
    assert "is damaged" in text
    untouched(empty)


@pytest.mark.parametrize("pattern", ["database/usage_events.copy.gz", "objects/adapters/*/*.json"])
def test_a_file_that_changes_after_it_was_checked(
    pattern: str, backup: Path, empty: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row of that table is loaded and that object is not kept; the restore goes on with the
    file as it was."""
    path = next(backup.glob(pattern))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with monkeypatch.context() as unchecked:
        unchecked.setattr(restoring, "_read_through", lambda place, file: None)
        assert "is damaged" in refused(empty, "restore", str(backup))
    with psycopg.connect(plain_url(str(empty.database_url))) as link:
        loaded = link.execute("SELECT count(*) FROM usage_events").fetchone() != (0,)
    assert loaded == pattern.startswith("objects")
    lies = empty.data_dir / path.relative_to(backup)
    assert not lies.exists()
    assert "has not come to its end" in refused(empty, "migrate")
    path.write_bytes(content)
    code, text = tenora(empty, "restore", str(backup))
    assert code == 0, text


def test_a_backup_of_a_newer_version(backup: Path, empty: Settings) -> None:
    change_manifest(backup, SECRET, revision="9999", tenora="9.9.9")
    assert "made by a newer Tenora (9.9.9, revision 9999)" in refused(empty, "restore", str(backup))
    change_manifest(backup, format=2)
    assert "made by a newer Tenora (9.9.9)" in refused(empty, "restore", str(backup))
    untouched(empty)


def test_a_manifest_that_was_changed(backup: Path, empty: Settings) -> None:
    change_manifest(backup, tables=[])
    assert "was changed after" in refused(empty, "restore", str(backup))
    untouched(empty)


def test_another_secret(backup: Path, empty: Settings, machine: Settings) -> None:
    text = refused(empty, "restore", str(backup), secret="another")
    assert "TENORA_SECRET is another server secret" in text
    machine.data_dir.mkdir()
    (machine.data_dir / "secret").write_text("of this machine\n")
    assert "secret is another server secret" in refused(
        machine, "restore", str(backup), secret=None
    )
    assert (machine.data_dir / "secret").read_text() == "of this machine\n"
    untouched(empty)


async def test_no_secret_at_all(own: Settings, machine: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1"):
        pass
    text = await made(own, tmp_path / "backup")
    assert "The server secret is not in it" in text
    assert not (tmp_path / "backup" / "secret").exists()
    text = refused(machine, "restore", str(tmp_path / "backup"), secret=None)
    assert "made without the server secret" in text
    untouched(machine)


def test_another_installation(backup: Path, empty: Settings) -> None:
    named = empty.model_copy(update={"installation": "acme"})
    assert "TENORA_INSTALLATION=tenora" in refused(named, "restore", str(backup))
    untouched(empty)


def test_a_place_that_is_not_empty(
    backup: Path, empty: Settings, servers: Servers, tmp_path: Path
) -> None:
    """Database, object store, or Redis; nothing of either is touched."""
    objects = tmp_path / "filled"
    obstore.put(LocalStore(prefix=objects, mkdir=True), "adapters/5/weights", b"precious")
    filled = empty.model_copy(update={"object_store": str(objects)})
    assert "it has adapters/5/weights" in refused(filled, "restore", str(backup))
    assert (objects / "adapters/5/weights").read_bytes() == b"precious"
    assert {path.name for path in objects.iterdir()} == {"adapters"}
    url = servers.new_database()
    before = tables(url)
    filled = empty.model_copy(update={"database_url": url})
    assert "The database is not empty" in refused(filled, "restore", str(backup))
    assert tables(url) == before
    valkey = EmbeddedValkey(tmp_path / "v", servers.secret)
    valkey.start()
    try:
        with redis.Redis.from_url(valkey.url) as client:
            client.set("names", "of another")
        filled = empty.model_copy(update={"redis_url": valkey.url})
        assert "Redis database" in refused(filled, "restore", str(backup))
    finally:
        valkey.stop()


async def test_an_installation_that_serves_is_no_place(
    backup: Path, own: Settings, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("mine")
        keys = own.data_dir / "admin_keys"
        change_manifest(backup, SECRET, admin_keys=["hash of a key"])
        text = await asyncio.to_thread(refused, own, "restore", str(backup))
        assert "The database is not empty" in text
        assert not keys.exists()
        assert (await api.call(tenant.key, "GET", "/v1/models")).status_code == 200


def test_damage_that_was_there_is_named(
    source: tuple[Path, Whole], settings: Settings, empty: Settings, tmp_path: Path
) -> None:
    """The backup is as its installation was: with a changed event and a lost adapter."""
    with psycopg.connect(plain_url(str(settings.database_url)), autocommit=True) as link:
        link.execute("SET session_replication_role = replica")
        changed = "UPDATE usage_events SET output_tokens = output_tokens + {} WHERE request = ({})"
        one = "SELECT request FROM usage_events ORDER BY 1 LIMIT 1"
        link.execute(changed.format("1", one).encode())
        objects = settings.data_dir / "objects"
        lost = next((objects / "adapters").iterdir())
        lost.rename(tmp_path / "lost")
        try:
            assert tenora(settings, "backup", str(tmp_path / "damaged"))[0] == 0
        finally:
            (tmp_path / "lost").rename(lost)
            link.execute(changed.format("-1", one).encode())
    text = refused(empty, "restore", str(tmp_path / "damaged"))
    assert "event_changed" in text or "seal" in text
    assert f"{lost.name} is served and was not in the store" in text
    assert tenora(empty, "migrate")[0] == 0, "it may be served all the same"


# How it is done


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
        assert hidden == {"kept_contents"}
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
    name = Installation("blue")
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
    assert before["kept_contents"] == after["kept_contents"]
    assert {each for each in before if before[each] != after[each]} <= BY_THEMSELVES | {
        "audit_logs"
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
        code, text = await asyncio.to_thread(tenora, empty, "restore", place)
        assert code == 0, text
        manifest = bucket.objects.pop("bucket/nights/1/manifest.json")
        assert "no complete backup" in await asyncio.to_thread(refused, own, "restore", place)
        bucket.objects["bucket/nights/1/manifest.json"] = manifest
        bucket.objects["bucket/nights/1/secret"] = b"another"
        assert "is damaged" in await asyncio.to_thread(refused, own, "restore", place)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of somebody else")
        text = await asyncio.to_thread(refused, own, "backup", "s3://bucket/nights/2")
        assert "s3://bucket/nights/2 cannot be" in text
    assert (empty.data_dir / "objects/uploads/upload_x/large").read_bytes() == large
