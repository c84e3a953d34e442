"""No start removes anything from the object store by the rows of a database that is not its own: an
empty, a restored or another's. Nor does it acknowledge usage there. What a sweep removes lies in
the trash for a week."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore, ObjectStore

from adapter_files import adapter_form
from api_harness import running_api, stored_objects
from platform_fixtures import Servers
from served_api import until
from store_harness import (
    become_active,
    contents,
    database,
    lost,
    make_old,
    pushed,
    stopped,
    tenora,
    warnings,
)
from tenora_engine.adapters.identity import config_key, weights_key
from tenora_platform.audit.witness import OBJECT as COPY_OF_ENDS
from tenora_platform.audit.witness import Witness
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.embedded.servers import running_servers
from tenora_platform.installation import DEFAULT
from tenora_platform.probing.tenant import probing_tenant
from tenora_platform.registry.collector import FEW, Collector
from tenora_platform.registry.store_identity import OBJECT, Record, StoreIdentity, identity
from tenora_platform.registry.trash import KEPT, Stuck, Trash, Trashed
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings
from tenora_platform.usage.copies import STREAM, CopyReader, UsageCopies
from tenora_platform.usage.engine_totals import TotalsKeeper
from tenora_platform.usage.gate import UsageGate, UsageHeldError
from tenora_platform.usage.leftovers import Leftovers
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record
from verification import problems_of

LATER = timedelta(0)
"""A grace time that is over."""


@pytest.fixture
def own(settings: Settings, servers: Servers, tmp_path: Path) -> Settings:
    """An installation of this test's own."""
    changes = {"data_dir": tmp_path / "data", "database_url": servers.new_database()}
    return settings.model_copy(update=changes)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test itself sweeps."""

    async def never(_: Collector) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Collector, "run", never)


async def test_an_older_database_removes_nothing(
    own: Settings, servers: Servers, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        first = await pushed(api, tenant, "first", 1)
    name = f"last_night_{next(servers.numbers)}"
    current = str(own.database_url).rpartition("/")[2].partition("?")[0]
    servers.execute("CREATE DATABASE {} TEMPLATE {}", name, current)
    older = own.model_copy(
        update={"database_url": str(own.database_url).replace(f"/{current}", f"/{name}")}
    )
    async with running_api(own, tmp_path / "2") as api:
        second = await pushed(api, tenant, "second", 2)
        lost_part = await lost(api, 1)
        kept = stored_objects(api)
    make_old(own)
    make_old(older)
    async with running_api(older, tmp_path / "3") as api:
        await until(lambda: api.state.store.told is not None)
        assert await Collector(api.state).sweep() == 0
        gone = await api.call(tenant.key, "DELETE", "/v1/adapters/first")
        assert gone.status_code == 200
        await IntakeWorker(api.state, release_after=LATER).run_once()
        assert stored_objects(api) == kept, "neither a sweep nor a release removes"
        assert "is older than the object store" in await warnings(api)
        assert await stopped(api)
    async with running_api(own, tmp_path / "4") as api:
        assert "object store" not in await warnings(api)
        await until(lambda: not lost_part & stored_objects(api))
        assert contents(first, second) <= stored_objects(api), "what nobody owns goes, as ever"


def test_an_empty_database_removes_nothing(own: Settings, tmp_path: Path) -> None:
    """With servers and a data directory as `tenora serve` has them: PostgreSQL's folder is gone."""
    embedded = own.model_copy(update={"database_url": None, "redis_url": None})
    kept: set[str] = set()

    async def served(settings: Settings, folder: Path, then: bool) -> None:
        async with running_api(settings, folder) as api:
            if not then:
                tenant = await api.new_tenant("acme", plan="premium")
                await pushed(api, tenant, "mine", 3)
                kept.update(stored_objects(api))
                return
            await until(lambda: api.state.store.told is not None)
            assert await Collector(api.state).sweep() == 0
            assert stored_objects(api) == kept
            assert "belongs to another database" in await warnings(api)

    for then in (False, True):
        with running_servers(embedded, embedded.server_secret()) as ready:
            prepare_database(database_urls(str(ready.database_url), ready.server_secret(), DEFAULT))
            asyncio.run(served(ready, tmp_path / str(then), then))
            make_old(ready)
        shutil.move(own.data_dir / "postgres", tmp_path / f"moved-{then}")


async def test_an_empty_store_is_not_taken_for_the_old_one(own: Settings, tmp_path: Path) -> None:
    """As one whose disk is not mounted: what waits for a check is not rejected."""
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        await pushed(api, tenant, "first", 1)
        await api.state.store.problem()
        api.state.engine_life.started = False  # nothing is checked
        files = adapter_form(api.engine.model, "waits", seed=9)
        assert (await api.call(tenant.key, "POST", "/v1/adapters", files=files)).status_code == 202
    objects = own.data_dir / "objects"
    objects.rename(tmp_path / "unmounted")
    async with running_api(own, tmp_path / "2") as api:
        path = "/v1/adapters/waits/versions/1"
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                await IntakeWorker(api.state).run_once()
        state = (await api.call(tenant.key, "GET", path)).json()["state"]
        assert state in ("quarantined", "validating")
        assert "has no record" in await warnings(api)
        assert stored_objects(api) == set()
    shutil.rmtree(objects)
    (tmp_path / "unmounted").rename(objects)
    async with running_api(own, tmp_path / "3") as api:
        await become_active(api, tenant, "waits")
        assert "object store" not in await warnings(api)


async def test_an_installation_of_before_is_adopted(own: Settings, tmp_path: Path) -> None:
    """Its store has objects and no record: adopted where rows and objects agree, else refused until
    the operator adopts it."""
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        digest = await pushed(api, tenant, "mine", 4)
    before = "UPDATE database_identity SET generation = 0, adopted_at = NULL"
    for unknown in (False, True):
        (own.data_dir / "objects" / OBJECT).unlink()
        strange = own.data_dir / "objects" / weights_key("sha256:" + "5" * 64)
        if unknown:
            strange.parent.mkdir()
            strange.write_bytes(b"of a newer database")
        with database(own) as link:
            link.execute(before)
        async with running_api(own, tmp_path / str(unknown)) as api:
            said = await warnings(api)
            assert ("it has 1 adapters" in said) == unknown
            assert await Collector(api.state).sweep() == 0, "not on a first start"
    make_old(own)
    code, text = await asyncio.to_thread(tenora, own, "store", "adopt")
    assert code == 1
    assert "1 of its" in text
    code, text = await asyncio.to_thread(tenora, own, "store", "adopt", "--yes")
    assert code == 0, text
    make_old(own)
    async with running_api(own, tmp_path / "3") as api:
        assert "object store" not in await warnings(api)
        await until(lambda: not strange.exists())
        assert contents(digest) <= stored_objects(api)
        entries = (await api.admin("GET", "/admin/v1/audit_logs")).json()["data"]
        assert "object_store.adopt" in [entry["action"] for entry in entries]
        assert await problems_of(api.state) == []


async def test_a_store_that_is_well_needs_no_adoption(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await pushed(api, await api.new_tenant("acme", plan="premium"), "mine", 4)
    with database(own) as link:
        before = link.execute("SELECT generation FROM database_identity").fetchone()
    for more in ((), ("--yes",)):
        code, text = await asyncio.to_thread(tenora, own, "store", "adopt", *more)
        assert (code, "Nothing to do" in text) == (0, True), text
    with database(own) as link:
        assert link.execute("SELECT generation FROM database_identity").fetchone() == before


async def test_a_database_of_before_that_serves_what_is_not_there(
    own: Settings, tmp_path: Path
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        await pushed(api, tenant, "mine", 4)
    with database(own) as link:
        link.execute("UPDATE database_identity SET generation = 0, adopted_at = NULL")
    shutil.rmtree(own.data_dir / "objects")
    async with running_api(own, tmp_path / "2") as api:
        assert "lacks 1 that it serves" in await warnings(api)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("key", [config_key, weights_key])
async def test_one_file_of_an_adapter_that_is_gone_is_told(
    key: Callable[[str], str], own: Settings, tmp_path: Path
) -> None:
    """The record of the database is there: a store that was copied in part."""
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        digests = [await pushed(api, tenant, f"mine-{seed}", seed) for seed in (4, 5)]
        await api.state.store.problem()
        collector = Collector(api.state)
        assert await collector.sweep() == 0
        assert await warnings(api) == ""
        assert "tenora_store_missing_contents 0.0" in (await api.http.get("/metrics")).text
        gone = own.data_dir / "objects" / key(digests[0])
        gone.rename(tmp_path / "gone")
        assert await collector.sweep() == 0
        assert "Files of 1 adapters that are served are missing" in await warnings(api)
        assert "tenora_store_missing_contents 1.0" in (await api.http.get("/metrics")).text
        code, text = await asyncio.to_thread(tenora, own, "store", "status", "--json")
        assert (code, json.loads(text)["missing_adapters"]) == (1, 1), text
        (tmp_path / "gone").rename(gone)
        assert await collector.sweep() == 0
        assert await warnings(api) == ""


@pytest.mark.usefixtures("alone")
async def test_a_sweep_of_too_much_stops(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await api.state.store.problem()
        few = await lost(api, FEW)
        assert await Collector(api.state, grace=LATER).sweep() == FEW
        many = await lost(api, FEW + 1)
        assert await Collector(api.state, grace=LATER).sweep() == 0
        assert many <= stored_objects(api)
        assert f"would move {FEW + 1} of {FEW + 1} objects" in await warnings(api)
        await api.state.store.problem()
        assert await stopped(api), "also once the identity was looked at again"
        copy_of_ends = own.data_dir / "objects" / COPY_OF_ENDS
        await api.new_tenant("last")
        await Witness(api.state.objects, api.state.secret).copy_once(api.state.db)
        assert copy_of_ends.exists()
        code, text = await asyncio.to_thread(tenora, own, "store", "adopt", "--yes")
        assert code == 0, text
        assert not copy_of_ends.exists(), "the log of an older database may be shorter"
        assert await Collector(api.state, grace=LATER).sweep() == FEW + 1
        assert not await stopped(api)
        await lost(api, FEW + 1)
        assert await Collector(api.state, grace=LATER).sweep() == 0, "it was adopted once"
        assert few & stored_objects(api) < many


@pytest.mark.usefixtures("alone")
async def test_what_was_swept_comes_back(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        digest = await pushed(api, tenant, "mine", 5)
        parts = await lost(api, 2)
        # The row is lost, as by a restore that nobody noticed, and found again.
        with database(own) as link:
            state = "UPDATE adapter_versions SET state = %s, released_at = %s"
            link.execute(state, ("revoked", datetime.now(UTC)))
            assert await Collector(api.state, grace=LATER).sweep() == 4
            assert not contents(digest) & stored_objects(api)
            link.execute(state, ("active", None))
        code, text = await asyncio.to_thread(tenora, own, "store", "trash")
        assert code == 0, text
        assert all(path in text for path in contents(digest) | parts)
        code, text = await asyncio.to_thread(tenora, own, "store", "restore")
        assert code == 0, text
        assert contents(digest) <= stored_objects(api)
        assert not parts & stored_objects(api)
        code, text = await asyncio.to_thread(tenora, own, "store", "restore", "uploads/")
        assert parts <= stored_objects(api)
        code, text = await asyncio.to_thread(tenora, own, "store", "status")
        assert code == 0, text


@pytest.mark.usefixtures("alone")
async def test_what_cannot_be_moved_keeps_no_other_waiting(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await api.state.store.problem()
        await obstore.put_async(api.state.objects, "uploads/upload_a/part", b"stuck")
        await obstore.put_async(api.state.objects, "uploads/upload_b/part", b"free")
        old = f"trash/{datetime.now(UTC).date() - 2 * KEPT}/uploads/upload_c/part"
        await obstore.put_async(api.state.objects, old, b"old")
        today = own.data_dir / "objects" / "trash" / str(datetime.now(UTC).date())
        in_the_way = today / "uploads" / "upload_a"
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_bytes(b"a file where a folder is to be")
        collector = Collector(api.state, grace=LATER)
        assert await collector.sweep() == 1
        left = stored_objects(api)
        assert "uploads/upload_a/part" in left
        assert not {"uploads/upload_b/part", old} & left
        assert "1 objects that nothing needs could not be removed" in await warnings(api)
        in_the_way.unlink()
        assert await collector.sweep() == 1
        assert "could not be removed" not in await warnings(api)


@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_the_trash_keeps_for_a_week(kind: str, tmp_path: Path) -> None:
    objects: ObjectStore = LocalStore(tmp_path) if kind == "folder" else MemoryStore()
    trash, today = Trash(objects), datetime.now(UTC).date()
    for path in ("adapters/a/b", "adapters/c"):
        await obstore.put_async(objects, path, path.encode())
    assert await trash.put(["adapters/a/b", "adapters/none", "adapters/c"], Stuck()) == 2
    old: dict[date, str] = {}
    for days in (KEPT.days, KEPT.days + 1, 400):
        day = today - timedelta(days=days)
        old[day] = Trashed(f"staging/{days}", day, 3).key
        await obstore.put_async(objects, old[day], b"old")
    await obstore.put_async(objects, "trash/note", b"an operator's")
    assert await trash.empty(Stuck()) == 2
    left = await trash.contents()
    assert [each.path for each in left] == ["staging/7", "adapters/a/b", "adapters/c"]
    await obstore.put_async(objects, "adapters/c", b"newer")
    assert await trash.bring_back(left) == ["staging/7", "adapters/a/b"]
    kept = await obstore.get_async(objects, "adapters/c")
    assert bytes(await kept.bytes_async()) == b"newer"


async def test_several_workers_raise_one_generation(own: Settings, tmp_path: Path) -> None:
    async with running_api(own, tmp_path / "1") as one, running_api(own, tmp_path / "2") as two:
        stores = [one.state.store, two.state.store]
        found = await asyncio.gather(*(stores[turn % 2].problem() for turn in range(12)))
        assert set(found) == {None}
        async with one.state.db.admin_session() as session:
            row = await identity(session)
        assert await stores[0].read() == Record(row.id, row.generation)


async def test_a_crash_between_database_and_store(
    own: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        store, objects = api.state.store, own.data_dir / "objects"
        await store.problem()
        for first in (False, True):
            if first:  # before the store had any record
                (objects / OBJECT).unlink()
                with database(own) as link:
                    link.execute("UPDATE database_identity SET generation = 0, adopted_at = NULL")

            async def crash(*_: object) -> None:
                raise ConnectionError("the process ended here")

            with monkeypatch.context() as patch:
                patch.setattr(StoreIdentity, "write", crash)
                for _ in range(3):
                    with pytest.raises(ConnectionError):
                        await store.problem()
            assert await store.problem() is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{}", b'{"database": "other", "generation": 9}']
)
async def test_a_damaged_record_is_no_record_of_ours(
    own: Settings, tmp_path: Path, content: bytes
) -> None:
    async with running_api(own, tmp_path / "1") as api:
        await api.state.store.problem()
        (own.data_dir / "objects" / OBJECT).write_bytes(content)
        await lost(api, 1)
        assert await Collector(api.state, grace=LATER).sweep() == 0
        assert await api.state.store.problem() is not None
        assert "another database" in await warnings(api)
        code, _ = await asyncio.to_thread(tenora, own, "store", "status")
        assert code == 1


def rows(settings: Settings, table: str) -> int:
    with database(settings) as link:
        found = link.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        return int(str(found[0]))


async def test_usage_waits_until_the_database_is_the_stores(
    own: Settings, servers: Servers, tmp_path: Path
) -> None:
    """Records, copies and totals: none is taken by another database, all by the right one."""
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        await api.state.store.problem()
    record = usage_record("usage_waits:0", tenant.id)
    wrong = own.model_copy(update={"database_url": servers.new_database()})
    async with running_api(wrong, tmp_path / "2") as api:
        await api.new_tenant("other", plan="premium")
        said = await warnings(api)
        assert "Usage is not stored and waits in the engine's outbox" in said
        assert "tenora store adopt" in said
        assert "tenora_store_usage_held 1.0" in (await api.http.get("/metrics")).text
        api.engine.outbox.append(record)
        gate = UsageGate(api.state.db, api.state.store)
        sink = UsageSink(api.engine, api.state.db, gate=gate)
        await api.state.redis.delete(STREAM)
        kept = UsageCopies(api.state.redis, api.state.seal, api.state.metrics).keep([record])
        assert kept is not None
        await kept
        copies = CopyReader(
            api.state.redis, api.state.seal, api.state.db, sink, api.state.metrics, age_s=-1.0
        )
        totals = TotalsKeeper(api.engine, api.state.db, gate=gate)
        for taking in (sink.run_once, copies.run_once, totals.run_once):
            with pytest.raises(UsageHeldError):
                await taking()
        await sink.store_what_waits()
        assert api.engine.outbox == [record], "and the running worker left it there, too"
        assert await api.state.redis.xlen(STREAM) == 1
    for table in ("usage_dead_letters", "engine_totals", "engine_outboxes"):
        assert rows(wrong, table) == 0, table
    async with running_api(own, tmp_path / "3") as api:
        api.engine.outbox.append(record)
        await until(lambda: not api.engine.outbox)
    assert rows(own, "usage_events") == 1


async def test_an_adopted_database_takes_the_usage(
    own: Settings, servers: Servers, tmp_path: Path
) -> None:
    """What names a tenant that it lacks is kept whole, and billed once the tenant is there."""
    async with running_api(own, tmp_path / "1") as api:
        tenant = await api.new_tenant("acme", plan="premium")
        await api.state.store.problem()
    record = usage_record("usage_adopted:0", tenant.id)
    adopting = own.model_copy(update={"database_url": servers.new_database()})
    async with running_api(adopting, tmp_path / "2") as api:
        await api.new_tenant("other", plan="premium")
        assert "Usage is not stored" in await warnings(api)
        api.engine.outbox.append(record)
        code, text = await asyncio.to_thread(tenora, adopting, "store", "adopt", "--yes")
        assert code == 0, text
        await until(lambda: not api.engine.outbox)
        assert rows(adopting, "usage_dead_letters") == 1
        sink = UsageSink(api.engine, api.state.db)
        leftovers = Leftovers(api.state.db, sink, api.state.unbilled)
        await leftovers.run_once()
        said = await warnings(api)
        assert "1 usage records could not be stored as events. They are kept whole" in said
        with database(adopting) as link:
            link.execute(
                "INSERT INTO tenants (id, name, plan, status) "
                "SELECT %s, 'acme', plan, status FROM tenants",
                (tenant.id,),
            )
        await leftovers.run_once()
        assert rows(adopting, "usage_events") == 1
        assert "could not be stored" not in await warnings(api)


async def test_usage_waits_beside_a_database_without_tenants(own: Settings, tmp_path: Path) -> None:
    """Database and store are both new; the engine's outbox is not."""
    record = usage_record("usage_strange:0", "tenant_of_before")
    async with running_api(own, tmp_path / "1") as api:
        await api.state.store.problem()
        api.engine.outbox.append(record)
        gate = UsageGate(api.state.db, api.state.store)
        with pytest.raises(UsageHeldError):
            await UsageSink(api.engine, api.state.db, gate=gate).run_once()
        assert "this database has no tenant" in await warnings(api)
        assert api.engine.outbox == [record]
        assert rows(own, "usage_dead_letters") == 0
        await probing_tenant(api.state)  # the platform's own
        with pytest.raises(UsageHeldError):
            await UsageSink(api.engine, api.state.db, gate=gate).run_once()
        assert api.engine.outbox == [record]
        await api.new_tenant("acme")
        await until(lambda: not api.engine.outbox)
        assert rows(own, "usage_dead_letters") == 1
        assert "this database has no tenant" not in await warnings(api)
