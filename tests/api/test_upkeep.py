"""PostgreSQL and Valkey of our own are held up: a killed one is back at its address and everybody
who used it goes on; while one is away requests are told so, with 503, and `/readyz` names it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from api_harness import ADMIN_KEY, SECRET, Api, running_api
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import Database
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.process import EmbeddedServerError, is_alive
from tenora_platform.embedded.servers import running_servers
from tenora_platform.embedded.upkeep import upheld
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT
from tenora_platform.redis_client import open_redis
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

KEY = ServerSecret(SECRET.encode())
BACK_S = 30  # a loaded machine; alone it is one or two
ASK = {"model": "fake-base", "prompt": "Hello", "max_tokens": 3}


def pid_of(folder: Path, name: str) -> int:
    path = {"postgres": "postgres/data/postmaster.pid", "valkey": "valkey/valkey.pid"}[name]
    return int((folder / path).read_text().split()[0])


def kill(folder: Path, name: str, how: signal.Signals) -> None:
    os.kill(pid_of(folder, name), how)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BACK_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {BACK_S} s for: {what}"
        time.sleep(0.05)


def replaced(folder: Path, name: str, old: int) -> bool:
    try:
        return pid_of(folder, name) != old
    except (FileNotFoundError, IndexError):
        return False  # between the two


@pytest.mark.parametrize("reach", ["sockets", "ports"])
async def test_killed_servers_are_back_for_those_who_used_them(reach: str, tmp_path: Path) -> None:
    data = tmp_path / ("d" if reach == "sockets" else "long" * 25)
    with running_servers(Settings(data_dir=data), KEY) as ready:
        assert ready.database_url is not None
        assert ready.redis_url is not None
        urls = database_urls(ready.database_url, KEY, DEFAULT)
        prepare_database(urls)
        db, redis = Database(urls), open_redis(ready.redis_url)
        # After SIGTERM PostgreSQL would wait for its clients, of whom our pool keeps one.
        for how in (signal.SIGKILL, signal.SIGTERM):
            await db.ping()
            await redis.set("before", 1)
            for name in ("postgres", "valkey"):
                old = pid_of(data, name)
                kill(data, name, how)
                until(partial(replaced, data, name, old), name)
            await eventually(db.ping)
            await eventually(redis.ping)
            assert await redis.get("before") is None, "it keeps nothing: a new one answers"
            async with db.admin_session() as session:
                assert await session.scalar(text("select count(*) from plans")) is not None
        await db.close()
        await redis.aclose()
        last = [pid_of(data, name) for name in ("postgres", "valkey")]
    assert not any(is_alive(pid) for pid in last), "stopped with the block"


async def eventually(call: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            await call()
        except Exception:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        else:
            return


async def not_ready(api: Api) -> Any:
    """What `/readyz` says once the last good answer no longer holds."""
    shown: list[httpx.Response] = []

    async def unready() -> None:
        shown.append(await api.http.get("/readyz"))
        assert shown[-1].status_code == 503

    await eventually(unready)
    return shown[-1].json()


class Stubborn:
    """A server that dies by itself and does not start again at once."""

    name = "stubborn"

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.running = threading.Event()

    def start(self) -> None:
        self.starts.append(time.monotonic())
        if len(self.starts) in (2, 3):
            raise EmbeddedServerError("the old one still holds its memory")
        self.running.set()

    def stop(self) -> None:
        self.running.clear()

    def ended(self) -> str | None:
        return None if self.running.is_set() else "signal SIGKILL"


def test_a_server_that_does_not_start_at_once_is_tried_again() -> None:
    server = Stubborn()
    with upheld(server):
        server.running.clear()
        until(lambda: len(server.starts) == 4 and server.running.is_set(), "it is up again")
        waits = [b - a for a, b in zip(server.starts[1:], server.starts[2:], strict=False)]
        assert len(server.starts) == 4
        assert waits[0] < waits[1], "each wait is longer"
        server.running.clear()
        until(lambda: len(server.starts) == 5, "and again")
    assert not server.running.is_set()


@pytest.fixture(scope="module")
def away_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedValkey]]:
    """Servers that a test may take away, and has to bring back."""
    folder = tmp_path_factory.mktemp("away")
    postgres, valkey = EmbeddedPostgres(folder / "p", KEY), EmbeddedValkey(folder / "v", KEY)
    try:
        postgres.start()
        valkey.start()
        yield postgres, valkey
    finally:
        valkey.stop()
        postgres.stop()


async def code_of(api: Api, key: str, method: str, path: str, **more: object) -> tuple[int, str]:
    reply = await api.call(key, method, path, **more)
    body = reply.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}, body
    assert int(reply.headers["retry-after-ms"]) > 0
    return reply.status_code, body["error"]["code"]


async def test_while_a_server_is_away_it_is_503_with_its_name(
    away_servers: tuple[EmbeddedPostgres, EmbeddedValkey], tmp_path: Path
) -> None:
    postgres, valkey = away_servers
    prepare_database(database_urls(postgres.url, KEY, DEFAULT))
    settings = Settings(
        data_dir=tmp_path,
        database_url=postgres.url,
        redis_url=valkey.url,
        admin_key=SecretStr(ADMIN_KEY),
        secret=SecretStr(SECRET),
        log_level="error",
        limits_fallback_s=0,
    )
    async with running_api(settings, tmp_path / "api") as api:
        known, stranger = await api.new_tenant("known"), await api.new_tenant("stranger")
        asked = await api.call(known.key, "POST", "/v1/completions", json=ASK)
        assert asked.status_code == 200, asked.text

        postgres.stop()
        for method, path, key, body in (
            ("POST", "/v1/completions", stranger.key, ASK),  # whose key nobody remembers
            ("GET", "/v1/adapters", known.key, None),
            ("GET", "/v1/usage", known.key, None),
            ("GET", "/admin/v1/tenants", ADMIN_KEY, None),
            ("POST", "/admin/v1/tenants", ADMIN_KEY, {"name": "x", "plan": "standard"}),
        ):
            found = await code_of(api, key, method, path, json=body)
            assert found == (503, "database_unavailable"), (method, path)
        probe = await not_ready(api)
        assert probe["status"] == "not_ready"
        assert "database" in probe["reason"]
        assert (await api.http.get("/healthz")).status_code == 200
        postgres.start()

        async def ready_again() -> None:
            assert (await api.http.get("/readyz")).status_code == 200

        await eventually(ready_again)
        again = await api.call(stranger.key, "POST", "/v1/completions", json=ASK)
        assert again.status_code == 200, again.text

        valkey.stop()
        found = await code_of(api, known.key, "POST", "/v1/completions", json=ASK)
        assert found == (503, "limits_unavailable")
        assert "Redis" in (await not_ready(api))["reason"]
        valkey.start()

        async def served_again() -> None:
            assert (await api.http.get("/readyz")).status_code == 200
            again = await api.call(known.key, "POST", "/v1/completions", json=ASK)
            assert again.status_code == 200, again.text

        await eventually(served_again)


async def test_a_server_that_hangs_shows_in_readyz(
    away_servers: tuple[EmbeddedPostgres, EmbeddedValkey], tmp_path: Path
) -> None:
    """It takes connections and says nothing: the probe gives up by itself, with words."""
    postgres, valkey = away_servers
    settings = Settings(
        data_dir=tmp_path,
        database_url=postgres.url,
        redis_url=valkey.url,
        admin_key=SecretStr(ADMIN_KEY),
        secret=SecretStr(SECRET),
        log_level="error",
        limits_fallback_s=0,
    )
    prepare_database(database_urls(postgres.url, KEY, DEFAULT))
    async with running_api(settings, tmp_path / "api") as api:
        pid = int((valkey.folder / "valkey.pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            probe = await api.http.get("/readyz")
        finally:
            os.kill(pid, signal.SIGCONT)
        assert probe.status_code == 503
        assert probe.json()["reason"] == "Redis does not answer (timeout)."
