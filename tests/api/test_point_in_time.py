"""Point-in-time recovery of an operator's own PostgreSQL, as docs/backup.md has it: a base backup
and archived write-ahead log bring back the database of a moment; nothing is removed from the store,
which is newer, and the books of that moment agree."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import redis

from api_harness import Api, running_api, stored_objects
from books import reconcile, record, store
from platform_fixtures import Servers, plain_url
from served_api import until
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.embedded.postgres import EmbeddedPostgres, find_binaries
from tenora_platform.installation import DEFAULT
from tenora_platform.registry.collector import Collector
from tenora_platform.settings import Settings
from verification import problems_of
from whole_installation import fill, noon, tenora


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "wal"
    folder.mkdir()
    folder.chmod(0o777)  # the server may run as another user
    for parent in folder.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
        if parent == Path("/tmp"):
            break
    return folder


def one(url: str, query: str) -> str:
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        row = link.execute(query.encode()).fetchone()
    return "" if row is None else str(row[0])


def alter(url: str, **values: str) -> None:
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        for name, value in values.items():
            link.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())


async def events_now(api: Api, tenant_id: str, count: int, since_s: float) -> None:
    await store(api, [record(tenant_id, since_s + each) for each in range(count)])


async def test_a_database_of_a_moment_and_a_newer_store(
    settings: Settings, servers: Servers, archive: Path, tmp_path: Path
) -> None:
    first = EmbeddedPostgres(tmp_path / "first", servers.secret)
    first.start()
    alter(first.url, archive_mode="on", archive_command=f"cp %p {archive}/%f")
    first.stop()
    first.start()
    second = EmbeddedPostgres(tmp_path / "second", servers.secret)
    try:
        prepare_database(database_urls(first.url, servers.secret, DEFAULT))
        own = settings.model_copy(update={"data_dir": tmp_path / "data", "database_url": first.url})
        async with running_api(own, tmp_path / "1") as api:
            whole = await fill(api)
            await api.state.store.problem()
            base_backup(first.url, tmp_path / "second" / "data")
            await events_now(api, whole.tenant.id, 5, noon(0) + 6000)
            moment = one(first.url, "SELECT clock_timestamp()")
            await asyncio.sleep(0.01)
            await events_now(api, whole.tenant.id, 7, noon(0) + 7000)
            await api.state.store.problem()  # the next generation
            kept = stored_objects(api)
        last = one(first.url, "SELECT pg_walfile_name(pg_switch_wal())")
        await until((archive / last).exists)
        first.stop()
        recover(tmp_path / "second" / "data", archive, moment)
        second.start()
        await until(lambda: one(second.url, "SELECT pg_is_in_recovery()") == "False")
        with redis.Redis.from_url(str(own.redis_url)) as client:
            client.flushall()
        older = own.model_copy(update={"database_url": second.url})
        async with running_api(older, tmp_path / "2") as api:
            await until(lambda: api.state.store.told is not None)
            warnings = " ".join((await api.http.get("/readyz")).json()["warnings"])
            assert "older than the object store" in warnings
            assert await Collector(api.state).sweep() == 0
            assert stored_objects(api) == kept
            code, text = await asyncio.to_thread(tenora, older, "store", "adopt", "--yes")
            assert code == 0, text
            assert await api.state.store.agrees()
            run = await reconcile(api)
            assert run["agrees"], run["named"]
            assert run["looked"]["events"] == 42 + 5
            assert await problems_of(api.state) == []
    finally:
        second.stop()
        first.stop()


def base_backup(url: str, to: Path) -> None:
    program = str(find_binaries() / "pg_basebackup")
    command = [program, "-D", str(to), "-d", plain_url(url), "-X", "none"]
    subprocess.run(command, check=True)


def recover(data: Path, archive: Path, moment: str) -> None:
    """What the page says: a command, a target, a signal."""
    with (data / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"\nrestore_command = 'cp {archive}/%f %p'\nrecovery_target_time = '{moment}'\n"
            "recovery_target_action = 'promote'\narchive_mode = off\n"
        )
    (data / "recovery.signal").touch()
    shutil.rmtree(data / "pg_wal" / "archive_status", ignore_errors=True)
    (data / "pg_wal" / "archive_status").mkdir(exist_ok=True)
