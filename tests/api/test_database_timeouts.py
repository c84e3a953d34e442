"""What a request asks of the database has an end, and so has waiting for it; work beside requests
has its own, longer one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from api_harness import SECRET, Api
from platform_fixtures import MakeApi, Servers, plain_url, with_database
from tenora_platform.bootstrap import (
    DatabaseSetupError,
    database_urls,
    most_connections,
    prepare_database,
)
from tenora_platform.cli.doctor import check_database
from tenora_platform.db import Database, DatabaseUrls
from tenora_platform.embedded.servers import running_servers
from tenora_platform.installation import DEFAULT
from tenora_platform.locks import lock
from tenora_platform.outages import outage_of
from tenora_platform.settings import Settings
from tenora_platform.state import AdminSession, TenantSession

_SHOW = (
    "select name, setting::int / 1000 from pg_settings where name in"
    " ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')"
)
_SLEEP = text("select pg_sleep(60)")


@pytest.fixture
def urls(servers: Servers, settings: Settings) -> DatabaseUrls:
    assert settings.database_url is not None
    return database_urls(settings.database_url, servers.secret, DEFAULT)


async def limits_of(db: Database) -> list[dict[str, int]]:
    """Seconds, in a tenant's session and in the operator's."""
    async with db.tenant_session("tenant_x") as tenant, db.admin_session() as admin:
        found = [(await session.execute(text(_SHOW))).all() for session in (tenant, admin)]
        return [{row[0]: row[1] for row in rows} for rows in found]


async def test_both_roles_are_limited_and_work_is_patient(api: Api) -> None:
    db = api.state.db
    request = {
        "statement_timeout": 15,
        "lock_timeout": 10,
        "idle_in_transaction_session_timeout": 60,
    }
    work = {
        "statement_timeout": 600,
        "lock_timeout": 60,
        "idle_in_transaction_session_timeout": 3600,
    }
    assert await limits_of(db) == [request, request]
    assert await limits_of(db.patient()) == [work, work]
    assert await limits_of(db) == [request, request], "a pooled connection is a request's again"


async def test_a_slow_statement_is_a_503_with_a_code(make_api: MakeApi) -> None:
    async with make_api(statement_timeout_s=0.2) as api:
        tenant = await api.new_tenant()

        async def slow_tenant(session: TenantSession) -> None:
            await session.execute(_SLEEP)

        async def slow_admin(session: AdminSession) -> None:
            await session.execute(_SLEEP)

        async def held(session: TenantSession) -> None:
            await lock(session, "held by another")

        api.app.add_api_route("/v1/slow", slow_tenant)
        api.app.add_api_route("/admin/v1/slow", slow_admin)
        api.app.add_api_route("/v1/held", held)
        async with api.state.db.patient().admin_session() as other:
            await lock(other, "held by another")
            answers = [
                await api.call(tenant.key, "GET", "/v1/slow"),
                await api.admin("GET", "/admin/v1/slow"),
                await api.call(tenant.key, "GET", "/v1/held"),
            ]
        for answer in answers:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "database_timeout")
            assert set(error) == {"message", "type", "param", "code"}
            assert int(answer.headers["retry-after-ms"]) > 0
        said = [answer.json()["error"]["message"] for answer in answers]
        assert "in time" in said[0]
        assert "changing the same thing" in said[2]
        listed = await api.call(tenant.key, "GET", "/v1/api_keys")
        assert listed.status_code == 200, "the connections are good for the next"


async def test_patient_work_outlasts_a_requests_time(urls: DatabaseUrls) -> None:
    db = Database(urls, statement_timeout_s=0.1)
    try:
        async with db.patient().admin_session() as session:
            await session.execute(text("select pg_sleep(0.4)"))
        with pytest.raises(OperationalError):
            async with db.admin_session() as session:
                await session.execute(text("select pg_sleep(0.4)"))
    finally:
        await db.close()


async def test_an_abandoned_transaction_is_ended(urls: DatabaseUrls) -> None:
    """Who forgets a session holds its locks for a minute at most; then it is told so."""
    db = Database(urls)

    async def forget() -> None:
        async with db.admin_session() as session:
            await session.execute(text("set local idle_in_transaction_session_timeout = '50ms'"))
            await asyncio.sleep(0.5)
            await session.execute(text("select 1"))

    try:
        with pytest.raises(DBAPIError) as caught:
            await forget()
        outage = outage_of(caught.value)
        assert outage is not None
        assert outage.code == "database_timeout"
        await db.ping()
    finally:
        await db.close()


async def test_connections_are_bounded(servers: Servers) -> None:
    urls = database_urls(servers.new_database(), servers.secret, DEFAULT)
    db = Database(urls, connections=6)
    counted = (
        "select count(*) from pg_stat_activity "
        "where datname = %s and backend_type = 'client backend'"
    )

    async def hold(number: int) -> None:
        session = db.admin_session() if number % 2 else db.tenant_session("tenant_x")
        async with session as opened:
            await opened.execute(text("select pg_sleep(0.3)"))

    try:
        working = asyncio.gather(*(hold(number) for number in range(20)))
        seen = []
        with psycopg.connect(plain_url(servers.postgres_url), autocommit=True) as watcher:
            while not working.done():
                (count,) = watcher.execute(counted, [urls.app.database]).fetchone() or (0,)
                seen.append(count)
                await asyncio.sleep(0.05)
        await working
        assert seen.count(6) > 3, seen
        # The server's process of a closed connection may end after the next one has begun.
        assert max(seen) <= 8, seen
    finally:
        await db.close()


async def test_who_is_under_way_ends_before_the_database_is_closed(servers: Servers) -> None:
    """Else a connection comes back to a pool that is nobody's, and stays open."""
    urls = database_urls(servers.new_database(), servers.secret, DEFAULT)
    db = Database(urls)
    pool = db._app.pool  # held, else what is left in it is closed with it
    begun = asyncio.Event()

    async def work() -> None:
        async with db.tenant_session("tenant_x") as opened:
            await opened.execute(text("select 1"))
            begun.set()
            await asyncio.sleep(0.1)

    working = asyncio.create_task(work())
    await begun.wait()
    await db.close()
    await asyncio.wait_for(working, 10)  # its connection is back; the rest is the loop's next turn
    counted = "select count(*) from pg_stat_activity where datname = %s"
    with psycopg.connect(plain_url(servers.postgres_url), autocommit=True) as watcher:
        until_s = time.monotonic() + 10  # the server's process ends after its connection
        while (left := watcher.execute(counted, [urls.app.database]).fetchone()) != (0,):
            assert time.monotonic() < until_s, (left, pool.status())
            await asyncio.sleep(0.02)


def test_the_servers_room_is_for_all_processes(
    servers: Servers, urls: DatabaseUrls, tmp_path: Path
) -> None:
    """An embedded server has it; an operator's is asked by `tenora doctor`."""
    many = Settings(data_dir=tmp_path / "d", workers=7, database_connections=20)
    assert many.connections_needed == 8 * 20 + 2
    with running_servers(many, servers.secret) as ready:
        assert ready.database_url is not None
        own = database_urls(ready.database_url, servers.secret, DEFAULT)
        assert most_connections(own) >= many.connections_needed
    url = urls.owner.render_as_string(hide_password=False)
    settings = many.model_copy(update={"database_url": url, "secret": SecretStr(SECRET)})
    finding = check_database(settings)
    assert finding.verdict == "note"
    assert "max_connections" in finding.text
    fitting = settings.model_copy(update={"workers": 1})
    assert "migrated to" in check_database(fitting).text


def test_a_pool_without_room_is_an_outage() -> None:
    outage = outage_of(PoolTimeoutError("QueuePool limit reached"))
    assert outage is not None
    assert (outage.status, outage.code) == (503, "database_unavailable")


def test_a_migration_does_not_hold_up_requests_for_ever(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a table lets everybody queue behind: it gives up, and says what to do."""
    monkeypatch.setattr("tenora_platform.bootstrap._LOCK_TIMEOUT_S", 1)
    servers.execute("CREATE DATABASE {}", "migrating")
    url = with_database(servers.postgres_url, "migrating")
    urls = database_urls(url, servers.secret, DEFAULT)
    prepare_database(urls, "0004")
    with psycopg.connect(plain_url(url)) as connection:
        connection.execute("select count(*) from upload_parts")  # and the transaction stays open
        began = time.monotonic()
        with pytest.raises(DatabaseSetupError, match="in use for too long"):
            prepare_database(urls)
        assert time.monotonic() - began < 30
    prepare_database(urls)
