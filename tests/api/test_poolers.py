"""A connection pooler that gives one session to several connections is refused with one sentence:
locks would be released by others."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool, StaticPool

from platform_fixtures import Servers, plain_url
from tenora_platform.bootstrap import (
    DatabaseSetupError,
    database_urls,
    migration_state,
    prepare_database,
    refuse_pooler,
)
from tenora_platform.embedded.process import as_user, free_port, server_user
from tenora_platform.installation import DEFAULT, Installation


def test_a_session_that_two_connections_share(servers: Servers) -> None:
    owner = database_urls(servers.new_database(), servers.secret, DEFAULT).owner
    shared = create_engine(owner, poolclass=StaticPool)
    with shared.connect() as one, pytest.raises(DatabaseSetupError, match="PgBouncer"):
        refuse_pooler(shared, one, "public")
    shared.dispose()
    own = create_engine(owner, poolclass=NullPool)
    with own.connect() as one:
        refuse_pooler(own, one, "public")
        with pytest.raises(DatabaseSetupError, match="PgBouncer"):
            refuse_pooler(own, one, "where_options_get_lost")


@contextmanager
def pgbouncer(url: str, folder: Path, *lines: str) -> Iterator[str]:
    """The URL of the same database through it."""
    direct, port = make_url(plain_url(url)), free_port()
    folder.mkdir()
    users, config = folder / "users.txt", folder / "pgbouncer.ini"
    users.write_text(f'"{direct.username}" "{direct.password}"\n')
    words = [
        "[databases]",
        f"* = host={direct.query['host']} port={direct.query['port']}",
        "[pgbouncer]",
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =",
        f"auth_type = plain\nauth_file = {users}\nquery_wait_timeout = 5",
        *lines,
    ]
    config.write_text("\n".join(words) + "\n")
    binary, user = shutil.which("pgbouncer") or "", server_user()
    if user is not None:
        for path in (folder, users, config):
            shutil.chown(path, user.pw_uid, user.pw_gid)
    child = subprocess.Popen(as_user(user, [binary, config], [config]))
    try:
        through = direct.set(host="127.0.0.1", port=port, query={})
        made = through.render_as_string(hide_password=False)
        _wait_for(port)
        yield made
    finally:
        child.terminate()
        child.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            psycopg.connect(host="127.0.0.1", port=port, dbname="pgbouncer", connect_timeout=2)
        except psycopg.OperationalError as error:
            if "refused" not in str(error):
                return
            time.sleep(0.05)
        else:
            return


OPTIONS = "ignore_startup_parameters = options"


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="PgBouncer is not installed")
@pytest.mark.parametrize(
    "lines",
    [
        ("pool_mode = transaction",),
        ("pool_mode = transaction", OPTIONS),
        ("pool_mode = transaction", OPTIONS, "default_pool_size = 1"),
        ("pool_mode = transaction", OPTIONS, "server_round_robin = 1", "min_pool_size = 5"),
        ("pool_mode = statement", OPTIONS),
        ("pool_mode = session", OPTIONS),
    ],
    ids=["default", "options", "one session", "round robin", "statement", "session"],
)
def test_pgbouncer(lines: tuple[str, ...], servers: Servers, tmp_path: Path) -> None:
    """In session mode it is refused as well where it loses what a connection is opened with, which
    is seen where that matters: in a schema of the installation's own."""
    with pgbouncer(servers.new_database(), tmp_path / "b", *lines) as url:
        name = Installation("green") if "pool_mode = session" in lines else DEFAULT
        urls = database_urls(url, servers.secret, name)
        for start in (prepare_database, migration_state):
            with pytest.raises(DatabaseSetupError) as caught:
                start(urls)
            assert "connection pooler (such as PgBouncer)" in str(caught.value)
