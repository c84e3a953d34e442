"""PostgreSQL and Redis that are refused, hang, take no writes, have no room, are slow or answer
nonsense: what a client is told has a name and an end, `/readyz` says the same, nobody is told where
the server is, and it all ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from redis.exceptions import ReadOnlyError
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from api_harness import ADMIN_KEY, Api, TestTenant
from fault_proxy import FaultProxy, State, fault_proxy, postgres_by, postgres_place
from platform_fixtures import MakeApi, Servers, plain_url
from tenora_platform import db_link
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database, libpq_url
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT
from tenora_platform.operations import probes
from tenora_platform.redis_client import open_redis
from tenora_platform.settings import Settings

ASK = {"model": "fake-base", "prompt": "0123456789", "max_tokens": 6}
BOUND_S = 20
"""Far above what the bounds of these tests add up to, and below what anybody waited before."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are given up sooner than in earnest."""
    monkeypatch.setattr(db_link, "CONNECT_S", 1.0)
    monkeypatch.setattr(db_link, "PING_S", 0.5)
    monkeypatch.setattr(db_link, "MARGIN_S", 0.3)
    monkeypatch.setattr(db_link, "_CANCEL_S", 0.3)
    monkeypatch.setattr(probes, "ANSWER_S", 0.7)
    monkeypatch.setattr("tenora_platform.assembly._PROBED_S", 0.05)
    monkeypatch.setattr("tenora_platform.redis_client.ANSWER_S", 0.4)


async def ask(api: Api, tenant: TestTenant) -> httpx.Response:
    async with asyncio.timeout(BOUND_S):
        return await api.call(tenant.key, "POST", "/v1/completions", json=ASK)


async def listed(api: Api, tenant: TestTenant) -> httpx.Response:
    async with asyncio.timeout(BOUND_S):
        return await api.call(tenant.key, "GET", "/v1/api_keys")


async def ready(api: Api) -> httpx.Response:
    async with asyncio.timeout(BOUND_S):
        return await api.http.get("/readyz")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def named(answer: httpx.Response, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code), answer.text
    assert int(answer.headers["retry-after-ms"]) > 0
    assert int(answer.headers["retry-after"]) > 0


async def says_nothing_of(api: Api, *places: object) -> None:
    """What anybody can read does not say where the servers are, or whose account is used there."""
    for path in ("/readyz", "/metrics", "/health", "/healthz"):
        shown = (await api.http.get(path)).text
        assert not [place for place in places if str(place) in shown], shown


@pytest.fixture
async def postgres_proxy(database_url: str) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(postgres_place(database_url)) as proxy:
        yield proxy


@pytest.fixture
def proxied(database_url: str, postgres_proxy: FaultProxy, make_api: MakeApi) -> Any:
    """An application that reaches PostgreSQL through the proxy."""
    url = postgres_by(database_url, postgres_proxy)
    return make_api(database_url=url, statement_timeout_s=0.7)


STATES: dict[State, str] = {"refused": "refused", "hanging": "timeout", "garbage": "refused"}


@pytest.mark.parametrize("state", STATES)
async def test_a_faulty_database(
    state: State, proxied: Any, postgres_proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    async with proxied as api:
        known, stranger = await api.new_tenant(), await api.new_tenant("stranger")
        assert (await ask(api, known)).status_code == 200
        assert (await ready(api)).status_code == 200
        await postgres_proxy.set(state)
        answers = await asyncio.gather(*(listed(api, known) for _ in range(4)))
        for answer in (*answers, await ask(api, stranger)):
            named(answer, "database_unavailable")
        assert (await ask(api, known)).status_code == 200, "whose key and model Redis remembers"

        async def is_known() -> bool:
            return (await ready(api)).status_code == 503

        await until(is_known)  # the last good answer holds for a while
        shown = await ready(api)
        assert f"The database does not answer ({STATES[state]})." in shown.json()["reason"]
        await says_nothing_of(api, "127.0.0.1", postgres_proxy.port, "tenora_app", "tenora_owner")
        details = (await api.admin("GET", "/readyz")).json()["reason"]
        assert len(details) > len(shown.json()["reason"]), "the operator is told the driver's words"
        await postgres_proxy.set("works")

        async def is_back() -> bool:
            return (await listed(api, stranger)).status_code == 200

        await until(is_back)
        await until(lambda: _is_ready(api))
    assert "Traceback" not in "".join(capsys.readouterr())


async def _is_ready(api: Api) -> bool:
    shown = await ready(api)
    return shown.status_code == 200 and shown.json()["warnings"] == []


async def test_a_slow_database_serves(proxied: Any, postgres_proxy: FaultProxy) -> None:
    async with proxied as api:
        tenant = await api.new_tenant()
        await postgres_proxy.set("slow")
        assert (await listed(api, tenant)).status_code == 200
        assert (await ready(api)).status_code == 200


async def test_a_statement_under_way_ends_although_the_database_hangs(
    servers: Servers, database_url: str, postgres_proxy: FaultProxy
) -> None:
    url = postgres_by(database_url, postgres_proxy)
    db = Database(database_urls(url, servers.secret, DEFAULT), statement_timeout_s=0.5)

    async def begun_before_it_hangs() -> None:
        async with db.admin_session() as session:
            await session.execute(text("select 1"))
            await postgres_proxy.set("hanging")
            await session.execute(text("select 1"))

    try:
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(OperationalError, match="no answer within"):
                await begun_before_it_hangs()
        await postgres_proxy.set("works")
        await db.ping()
    finally:
        await db.close()


async def test_who_goes_away_does_not_wait_for_a_database_that_hangs(
    servers: Servers, database_url: str, postgres_proxy: FaultProxy
) -> None:
    """A cancelled statement is called off in the server, which answers; or else its connection is
    closed."""
    url = postgres_by(database_url, postgres_proxy)
    db = Database(database_urls(url, servers.secret, DEFAULT), statement_timeout_s=60)
    begun = asyncio.Event()

    async def hold() -> None:
        async with db.admin_session() as session:
            begun.set()
            await session.execute(text("select pg_sleep(50)"))

    try:
        for state in ("works", "hanging"):
            begun.clear()
            holding = asyncio.create_task(hold())
            await begun.wait()
            await asyncio.sleep(0.2)  # it is under way
            await postgres_proxy.set(state)
            holding.cancel()
            await asyncio.wait((holding,), timeout=BOUND_S)
            assert holding.cancelled()
        await postgres_proxy.set("works")
        await db.ping()
    finally:
        await db.close()


@pytest.fixture
def read_only(servers: Servers) -> Iterator[Callable[[bool], None]]:
    """Makes PostgreSQL read-only, also for who is connected, as a standby is; and back."""

    def change(is_on: bool) -> None:
        said = "SET default_transaction_read_only = on"
        servers.execute(f"ALTER SYSTEM {said if is_on else 'RESET default_transaction_read_only'}")
        servers.execute("SELECT pg_reload_conf()")

    yield change
    change(False)


async def is_read_only(api: Api) -> bool:
    async with api.state.db.admin_session() as session:
        return bool(await session.scalar(text("show transaction_read_only")) == "on")


async def test_a_read_only_database_serves_what_only_reads(
    make_api: MakeApi, read_only: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    async with make_api() as api:
        tenant = await api.new_tenant()
        made = await api.admin(
            "POST", "/admin/v1/admin_keys", json={"name": "x", "role": "operator"}
        )
        assert made.status_code == 201, made.text
        made_at_first = await api.call(tenant.key, "GET", "/.well-known/tenora-keys.json")
        assert made_at_first.status_code == 200
        read_only(True)
        await until(lambda: is_read_only(api))
        assert (await ask(api, tenant)).status_code == 200, "a key that was never used before"
        assert (await listed(api, tenant)).status_code == 200
        kept = await api.call(made.json()["key"], "GET", "/admin/v1/tenants")
        assert kept.status_code == 200, "an operator's key likewise"
        body = {"name": "no", "plan": "standard"}
        for answer in (
            await api.admin("POST", "/admin/v1/tenants", json=body),
            await api.call(tenant.key, "POST", "/v1/api_keys", json={"name": "no"}),
        ):
            named(answer, "database_read_only")
        shown = await ready(api)
        assert shown.status_code == 200
        assert any(
            "The database takes no writes (read-only)." in w for w in shown.json()["warnings"]
        )
        await _nothing_that_reads_fails(api, tenant)
        read_only(False)

        async def writes() -> bool:
            made = await api.admin("POST", "/admin/v1/tenants", json=body)
            return made.status_code == 201

        await until(writes)
        await until(lambda: _is_ready(api))
    assert "Traceback" not in "".join(capsys.readouterr())


async def _nothing_that_reads_fails(api: Api, tenant: TestTenant) -> None:
    for path, methods in api.app.openapi()["paths"].items():
        if "get" not in methods or "{" in path:
            continue
        key = ADMIN_KEY if path.startswith("/admin/") else tenant.key
        answer = await api.call(key, "GET", path)
        assert answer.status_code < 500, (path, answer.text)


REDIS_STATES: dict[State, str] = {"refused": "refused", "hanging": "timeout", "garbage": "failed"}


@asynccontextmanager
async def over(make_api: MakeApi, url: str, **more: Any) -> AsyncIterator[tuple[Api, TestTenant]]:
    changes = {"redis_url": url, "lease_s": 1.5, **more}
    async with make_api(**changes) as api:
        await api.put_plan("faulty", {"requests_per_min": 100})
        yield api, await api.new_tenant(plan="faulty")


async def limited_locally(api: Api, tenant: TestTenant, trouble: str) -> None:
    """Requests are served, and `/readyz` says without what."""

    async def is_local() -> bool:
        answer = await ask(api, tenant)
        assert answer.status_code == 200, answer.text
        return bool(answer.headers.get("x-tenora-limits") == "local")

    await until(is_local)
    shown = await ready(api)
    assert shown.status_code == 200, shown.text
    warned = [each for each in shown.json()["warnings"] if each.startswith("Redis ")]
    assert len(warned) == 1, shown.text
    assert f"({trouble})." in warned[0]
    assert "Rate limits are checked without it" in warned[0]


async def shared_again(api: Api, tenant: TestTenant) -> None:
    async def is_shared() -> bool:
        answer = await ask(api, tenant)
        return answer.status_code == 200 and "x-tenora-limits" not in answer.headers

    await until(is_shared)
    await until(lambda: _is_ready(api))


@pytest.mark.parametrize("state", REDIS_STATES)
async def test_a_faulty_redis(
    state: State,
    make_api: MakeApi,
    valkey: EmbeddedValkey,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with fault_proxy(str(valkey.folder / "valkey.sock")) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        async with over(make_api, url) as (api, tenant):
            assert "x-tenora-limits" not in (await ask(api, tenant)).headers
            await proxy.set(state)
            await limited_locally(api, tenant, REDIS_STATES[state])
            await says_nothing_of(api, "127.0.0.1", proxy.port)
            await proxy.set("works")
            await shared_again(api, tenant)
    assert "Traceback" not in "".join(capsys.readouterr())


async def test_a_slow_redis_serves(make_api: MakeApi, valkey: EmbeddedValkey) -> None:
    async with (
        fault_proxy(str(valkey.folder / "valkey.sock")) as proxy,
        over(make_api, f"redis://127.0.0.1:{proxy.port}") as (api, tenant),
    ):
        await proxy.set("slow")
        await shared_again(api, tenant)


Change = tuple[str, ...]
REFUSES_WRITES: dict[str, tuple[Change, Change, str]] = {
    "replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read-only"),
    "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "full"),
    "acl": (
        ("ACL", "SETUSER", "default", "-@write"),
        ("ACL", "SETUSER", "default", "+@all"),
        "refused",
    ),
}


@pytest.mark.parametrize("how", REFUSES_WRITES)
async def test_a_redis_that_answers_and_takes_no_writes_is_as_one_that_is_away(
    how: str, make_api: MakeApi, valkey: EmbeddedValkey, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, mended, trouble = REFUSES_WRITES[how]
    async with open_redis(valkey.url) as operator:
        async with over(make_api, valkey.url) as (api, tenant):
            assert (await ask(api, tenant)).status_code == 200
            await operator.execute_command(*broken)  # type: ignore[no-untyped-call]
            assert await operator.ping()
            await limited_locally(api, tenant, trouble)
            await operator.execute_command(*mended)  # type: ignore[no-untyped-call]
            await shared_again(api, tenant)
        async with over(make_api, valkey.url, limits_fallback_s=0) as (api, tenant):
            await operator.execute_command(*broken)  # type: ignore[no-untyped-call]
            named(await ask(api, tenant), "limits_unavailable")
            shown = await ready(api)
            assert shown.status_code == 503
            assert f"({trouble})" in shown.json()["reason"]
            await operator.execute_command(*mended)  # type: ignore[no-untyped-call]
            await shared_again(api, tenant)
    assert "Traceback" not in "".join(capsys.readouterr())


async def test_a_failover_behind_one_address_is_followed(
    valkey: EmbeddedValkey, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old primary, a replica now, keeps its connections and refuses writes."""
    monkeypatch.setattr("tenora_platform.redis_line.RENEWED_S", 0.0)
    other = EmbeddedValkey(tmp_path / "o", servers.secret)
    other.start()
    try:
        async with (
            fault_proxy(str(valkey.folder / "valkey.sock")) as proxy,
            open_redis(f"redis://127.0.0.1:{proxy.port}") as redis,
            open_redis(valkey.url) as operator,
        ):
            await redis.set("before", 1)
            await operator.execute_command("REPLICAOF", "127.0.0.1", "1")  # type: ignore[no-untyped-call]
            proxy.upstream = str(other.folder / "valkey.sock")
            with pytest.raises(ReadOnlyError):
                await redis.set("k", 1)
            await redis.set("k", 1)
            async with open_redis(other.url) as new:
                assert await new.get("k") == b"1"
    finally:
        other.stop()


def test_every_url_of_the_database_notices_a_peer_that_is_gone(
    servers: Servers, settings: Settings
) -> None:
    """Also where nothing else bounds a wait: migrations, books, backups."""
    assert settings.database_url is not None
    urls = database_urls(settings.database_url, servers.secret, DEFAULT)
    for url in (urls.owner, urls.app, urls.admin):
        assert set(db_link.TCP) <= set(url.query)
    own = f"{plain_url(settings.database_url)}&tcp_user_timeout=7"
    assert database_urls(own, servers.secret, DEFAULT).app.query["tcp_user_timeout"] == "7"
    with psycopg.connect(libpq_url(urls.owner)) as link:
        assert link.execute("select 1").fetchone() == (1,)
