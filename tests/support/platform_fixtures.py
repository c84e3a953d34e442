"""Fixtures of the platform: real servers, fresh databases, and applications over them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import structlog
from psycopg import sql
from pydantic import SecretStr

from api_harness import ADMIN_KEY, SECRET, Api, running_api
from shell import Listening, served_in_a_thread
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import libpq_url, psycopg_url
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT
from tenora_platform.people import attempts
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

Connection = psycopg.Connection[tuple[Any, ...]]
_TEMPLATE = "tenora_template"


def set_first_prices(url: str) -> None:
    """As an installation has them that charged before they were taken back (migration 0040)."""
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        connection.execute(
            """
            ALTER TABLE prices DISABLE TRIGGER append_only;
            ALTER TABLE prices DROP CONSTRAINT fk_prices_price_version_id_price_versions;
            UPDATE price_versions SET id = 'price_default' WHERE id = 'price_free';
            UPDATE prices SET price_version_id = 'price_default', per_million = CASE meter
              WHEN 'uncached_prefill' THEN 0.10 WHEN 'cached_prefill' THEN 0.02
              WHEN 'output' THEN 0.40 ELSE 0 END;
            ALTER TABLE prices ADD CONSTRAINT fk_prices_price_version_id_price_versions
              FOREIGN KEY (price_version_id) REFERENCES price_versions (id);
            ALTER TABLE prices ENABLE TRIGGER append_only;
            """
        )


@dataclass(frozen=True)
class Servers:
    """PostgreSQL (as its superuser) and Valkey, embedded, for the whole session."""

    postgres_url: str
    redis_url: str
    secret: ServerSecret
    numbers: Iterator[int]

    def execute(self, statement: str, *names: str) -> None:
        """One statement outside a transaction; `{}` are replaced by quoted names."""
        with psycopg.connect(plain_url(self.postgres_url), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def new_database(self) -> str:
        """The URL of a migrated, empty database of its own."""
        name = f"test_{next(self.numbers)}"
        self.execute("CREATE DATABASE {} TEMPLATE {}", name, _TEMPLATE)
        return with_database(self.postgres_url, name)


def plain_url(url: str) -> str:
    """The URL as libpq takes it."""
    return libpq_url(psycopg_url(url))


def with_database(url: str, name: str) -> str:
    return psycopg_url(url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(autouse=True)
def plain_logs() -> None:
    """Tracebacks without local variables, as the platform itself logs them; for each test anew,
    because a command under test configures logging for its own standard error."""
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            renderer,
        ]
    )


@pytest.fixture(scope="session", autouse=True)
def any_number_of_wrong_keys() -> Iterator[None]:
    """Tests ask with more of them in a minute, from one address, than is served."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "WRONG_KEYS_MAX", 10**9)
        yield


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    secret = ServerSecret(SECRET.encode())
    with ExitStack() as stack:
        postgres = EmbeddedPostgres(folder / "postgres", secret)
        postgres.start()
        stack.callback(postgres.stop)
        valkey = EmbeddedValkey(folder / "valkey", secret)
        valkey.start()
        stack.callback(valkey.stop)
        made = Servers(postgres.url, valkey.url, secret, itertools.count(1))
        made.execute("ALTER SYSTEM SET fsync = off")  # nothing here outlives the machine
        made.execute("SELECT pg_reload_conf()")
        made.execute("CREATE DATABASE {}", _TEMPLATE)
        prepare_database(database_urls(with_database(postgres.url, _TEMPLATE), secret, DEFAULT))
        set_first_prices(with_database(postgres.url, _TEMPLATE))
        yield made


@pytest.fixture(scope="module")
def database_url(servers: Servers) -> str:
    """A fresh database for the module, as its owner."""
    return servers.new_database()


@pytest.fixture
def owner(database_url: str) -> Iterator[Connection]:
    """The module's database as its superuser, whom no row-level security binds."""
    with psycopg.connect(plain_url(database_url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey of this test's own, which it may stop and kill."""
    server = EmbeddedValkey(tmp_path / "v", ServerSecret(b"of-the-tests"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def redis_url(servers: Servers) -> str:
    """The Valkey server, emptied for the module."""
    with redis.Redis.from_url(servers.redis_url) as client:
        client.flushall()
    return servers.redis_url


@pytest.fixture(scope="module")
def settings(
    database_url: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """Settings of a platform over the module's own database."""
    return Settings(
        data_dir=tmp_path_factory.mktemp("data"),
        database_url=database_url,
        redis_url=redis_url,
        admin_key=SecretStr(ADMIN_KEY),
        secret=SecretStr(SECRET),
        log_level="error",
        probe_adapters=False,  # what engines are asked is the tests' matter
    )


MakeApi = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def make_api(settings: Settings, tmp_path: Path) -> MakeApi:
    """`async with make_api(max_body=1000) as api:` an application with other settings, over the
    same database and Valkey."""

    def make(**changes: Any) -> AbstractAsyncContextManager[Api]:
        return running_api(settings.model_copy(update=changes), tmp_path)

    return make


@pytest.fixture(scope="module")
async def api(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One application for the module, with a fake engine."""
    async with running_api(settings, tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture(scope="module")
def listening(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """The same on a port, for the command line."""
    with served_in_a_thread(settings, tmp_path_factory.mktemp("listening")) as made:
        yield made
