"""The servers: embedded ones start, stop and recover inside their folder; the operator's own work
as well, down to PostgreSQL 15 and redis-server where this machine has them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import redis
from pydantic import SecretStr

from api_harness import ADMIN_KEY, SECRET, running_api
from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.admin_key import made_keys
from tenora_platform.bootstrap import (
    DatabaseSetupError,
    database_urls,
    migration_state,
    prepare_database,
)
from tenora_platform.cli.errors import CliError
from tenora_platform.demo import Demo, kept_admin_key
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.embedded.process import EmbeddedServerError, free_port, is_alive
from tenora_platform.embedded.servers import running_servers
from tenora_platform.embedded.valkey import EmbeddedValkey
from tenora_platform.installation import DEFAULT
from tenora_platform.secret import SecretLostError, ServerSecret, load_secret
from tenora_platform.settings import Settings
from verification import problems_of

DEBIAN_POSTGRES = Path("/usr/lib/postgresql/15/bin")
KEY = ServerSecret(SECRET.encode())


def select(url: str, query: str) -> object:
    with psycopg.connect(plain_url(url)) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def test_both_start_keep_their_data_and_stop(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    with running_servers(settings, KEY) as ready:
        assert ready.database_url is not None
        assert ready.redis_url is not None
        with psycopg.connect(plain_url(ready.database_url)) as connection:
            connection.execute("create table kept as select 7 as n")
        with redis.Redis.from_url(ready.redis_url) as client:
            assert client.ping()
        with pytest.raises(EmbeddedServerError, match="Another Tenora"):
            running_servers(settings, KEY).__enter__()
    with pytest.raises(psycopg.OperationalError):
        select(ready.database_url, "select 1")
    with running_servers(settings, KEY) as again:
        assert again.database_url is not None
        assert select(again.database_url, "select n from kept") == 7
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_a_killed_run_is_recovered(tmp_path: Path) -> None:
    """The platform was killed: its servers live on, with their pid files and sockets."""
    postgres, valkey = EmbeddedPostgres(tmp_path / "p", KEY), EmbeddedValkey(tmp_path / "v", KEY)
    postgres.start()
    valkey.start()
    old = [int((tmp_path / "p/data/postmaster.pid").read_text().split()[0])]
    old.append(int((tmp_path / "v/valkey.pid").read_text()))
    next_postgres = EmbeddedPostgres(tmp_path / "p", KEY)
    next_valkey = EmbeddedValkey(tmp_path / "v", KEY)
    try:
        next_postgres.start()
        next_valkey.start()
        assert not any(is_alive(pid) for pid in old)
        assert select(next_postgres.url, "select 1") == 1
    finally:
        for server in (next_valkey, next_postgres, valkey, postgres):
            server.stop()


def test_a_killed_server_and_a_stale_pid_file(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "p", KEY)
    postgres.start()
    pid_file = tmp_path / "p/data/postmaster.pid"
    lines = pid_file.read_text().split("\n")
    os.kill(int(lines[0]), signal.SIGKILL)
    while is_alive(int(lines[0])):
        time.sleep(0.01)
    # The number has been given to another program since: us.
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    again = EmbeddedPostgres(tmp_path / "p", KEY)
    try:
        again.start()
        assert select(again.url, "select 1") == 1
    finally:
        again.stop()
        postgres.stop()


def test_a_long_path_gets_ports_instead_of_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 20) / ("deep" * 10)
    with running_servers(Settings(data_dir=deep), KEY) as ready:
        assert "127.0.0.1" in str(ready.database_url)
        assert "127.0.0.1" in str(ready.redis_url)
        assert select(str(ready.database_url), "select 1") == 1
        with redis.Redis.from_url(str(ready.redis_url)) as client:
            assert client.ping()
        without_password = str(ready.redis_url).split("@")[1]
        with (
            redis.Redis.from_url(f"redis://{without_password}") as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()


def test_a_broken_cluster_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedServerError, match=r"postgres\.log"):
        EmbeddedPostgres(folder, KEY).start()


def damaged(data: Path, how: str) -> None:
    """A cluster that serves nobody any more."""
    if how == "PG_VERSION is gone":
        (data / "PG_VERSION").unlink()
    elif how == "a part was copied":
        for path in (data / "PG_VERSION", data / "postmaster.opts"):
            path.unlink()
        shutil.rmtree(data / "base")
    else:
        (data.parent / "initdb.unfinished").write_text("from an initdb long ago")
        (data / "PG_VERSION").unlink()
        if how == "a base backup":  # which lacks this file
            (data / "postmaster.opts").unlink()


@pytest.mark.parametrize(
    "how", ["PG_VERSION is gone", "a part was copied", "a stale marker", "a base backup"]
)
def test_a_damaged_cluster_is_not_touched(tmp_path: Path, how: str) -> None:
    postgres = EmbeddedPostgres(tmp_path / "p", KEY)
    postgres.start()
    with psycopg.connect(plain_url(postgres.url), autocommit=True) as link:
        link.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    postgres.stop()
    version = (postgres.data / "PG_VERSION").read_bytes()
    whole = shutil.copytree(postgres.data, tmp_path / "backup", symlinks=True)
    damaged(postgres.data, how)
    left = {path: path.read_bytes() for path in postgres.data.rglob("*") if path.is_file()}
    with pytest.raises(EmbeddedServerError, match=r"no PG_VERSION.*Nothing was changed"):
        EmbeddedPostgres(tmp_path / "p", KEY).start()
    assert left == {path: path.read_bytes() for path in postgres.data.rglob("*") if path.is_file()}
    shutil.rmtree(postgres.data)
    shutil.copytree(whole, postgres.data, symlinks=True)
    assert (postgres.data / "PG_VERSION").read_bytes() == version
    again = EmbeddedPostgres(tmp_path / "p", KEY)
    again.start()
    try:
        assert select(again.url, "select answer from kept") == 42
    finally:
        again.stop()


def test_an_initdb_that_was_killed_is_made_anew(tmp_path: Path) -> None:
    """Whatever it had written by then, PG_VERSION too."""
    again = EmbeddedPostgres(tmp_path / "p", KEY)
    script = (
        "from pathlib import Path; from tenora_platform.secret import ServerSecret;"
        "from tenora_platform.embedded.postgres import EmbeddedPostgres;"
        f"EmbeddedPostgres(Path({str(again.folder)!r}), ServerSecret({KEY.root!r})).start()"
    )
    first = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    while not (again.data / "PG_VERSION").exists():
        assert first.poll() is None
        time.sleep(0.001)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert (again.folder / "initdb.unfinished").exists()
    again.start()
    try:
        assert select(again.url, "select 1") == 1
        assert not (tmp_path / "p" / "initdb.unfinished").exists()
    finally:
        again.stop()


def test_a_base_backup_beside_a_stale_marker_is_served(tmp_path: Path) -> None:
    """No initdb leaves a database of ours, though no server has run on these files."""
    postgres = EmbeddedPostgres(tmp_path / "p", KEY)
    postgres.start()
    with psycopg.connect(plain_url(postgres.url), autocommit=True) as link:
        link.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    postgres.stop()
    (postgres.data / "postmaster.opts").unlink()
    (postgres.folder / "initdb.unfinished").write_text("from an initdb long ago")
    again = EmbeddedPostgres(tmp_path / "p", KEY)
    again.start()
    try:
        assert select(again.url, "select answer from kept") == 42
    finally:
        again.stop()


def test_another_secret_is_refused_at_once(servers: Servers, tmp_path: Path) -> None:
    """By the embedded server, and by an operator's database, whose roles keep their passwords."""
    with running_servers(Settings(data_dir=tmp_path), KEY):
        pass
    with (
        pytest.raises(EmbeddedServerError, match="another server secret"),
        running_servers(Settings(data_dir=tmp_path), ServerSecret(b"other")),
    ):
        pass
    url = servers.new_database()
    urls = database_urls(url, servers.secret, DEFAULT)
    with pytest.raises(DatabaseSetupError, match=r"another server secret.*TENORA_SECRET"):
        prepare_database(database_urls(url, ServerSecret(b"other"), DEFAULT))
    assert select(urls.admin.render_as_string(hide_password=False), "select 1") == 1
    with psycopg.connect(plain_url(url), autocommit=True) as link:
        link.execute("UPDATE public.database_identity SET secret_check = NULL")
    prepare_database(urls)
    assert select(url, "select secret_check is not null from database_identity") is True


def test_preparing_twice_and_at_once_is_harmless(servers: Servers) -> None:
    url = servers.new_database()
    urls = database_urls(url, servers.secret, DEFAULT)
    for _ in range(2):
        prepare_database(urls)
    current, head = migration_state(urls)
    assert current == head is not None


def test_an_unreachable_database_says_what_to_check() -> None:
    url = f"postgresql://someone:hidden@127.0.0.1:{free_port()}/none"
    with pytest.raises(DatabaseSetupError, match="TENORA_DATABASE_URL") as caught:
        prepare_database(database_urls(url, KEY, DEFAULT))
    assert "hidden" not in str(caught.value)


def test_a_user_who_may_not_create_roles_is_told_how(tmp_path: Path) -> None:
    """On a server of its own: roles belong to the whole cluster."""
    postgres = EmbeddedPostgres(tmp_path / "p", KEY)
    postgres.start()
    try:
        url = postgres.url
        with psycopg.connect(plain_url(url), autocommit=True) as connection:
            connection.execute("CREATE ROLE modest LOGIN PASSWORD 'pw'")
            connection.execute("CREATE DATABASE theirs OWNER modest")
        modest = with_user(with_database(url, "theirs"), "modest", "pw")
        with pytest.raises(DatabaseSetupError, match="ALTER ROLE modest CREATEROLE"):
            prepare_database(database_urls(modest, KEY, DEFAULT))
        with psycopg.connect(plain_url(url), autocommit=True) as connection:
            connection.execute("ALTER ROLE modest CREATEROLE")
        prepare_database(database_urls(modest, KEY, DEFAULT))
        assert select(modest, "select rolsuper from pg_roles where rolname = 'tenora_app'") is False
        with psycopg.connect(plain_url(url), autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {DEFAULT.app_role} BYPASSRLS")
        with pytest.raises(DatabaseSetupError, match="NOBYPASSRLS"):
            prepare_database(database_urls(modest, KEY, DEFAULT))
    finally:
        postgres.stop()


def with_user(url: str, user: str, password: str) -> str:
    from tenora_platform.db import psycopg_url

    return psycopg_url(url).set(username=user, password=password).render_as_string(False)


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    first = load_secret(tmp_path, None)
    assert load_secret(tmp_path, None).root == first.root
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert load_secret(tmp_path, "given").root == b"given"
    assert first.key("a") != first.key("b")
    assert first.root.hex() not in repr(first)


@pytest.mark.parametrize("left", ["postgres/data/base", "objects/adapters", "outbox/lock"])
def test_a_lost_secret_is_not_replaced(tmp_path: Path, left: str) -> None:
    made = load_secret(tmp_path, None)
    path, text = tmp_path / "secret", (tmp_path / "secret").read_text()
    (tmp_path / left).mkdir(parents=True)
    path.unlink()
    with pytest.raises(SecretLostError, match=r"secret is missing.*Restore.*TENORA_SECRET"):
        load_secret(tmp_path, None)
    assert not path.exists()
    for empty in ("", "\n"):
        path.write_text(empty)
        with pytest.raises(SecretLostError, match="secret is empty"):
            load_secret(tmp_path, None)
    path.write_bytes(b"\xff\xfe" + text.encode())
    with pytest.raises(SecretLostError, match=r"secret is not text.*Restore.*TENORA_SECRET"):
        load_secret(tmp_path, None)
    path.write_text(text)
    assert load_secret(tmp_path, None).root == made.root
    assert load_secret(tmp_path, "given").root == b"given"


def test_the_secret_of_whoever_was_first_holds(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(load_secret, tmp_path, None) for _ in range(8)]
        assert len({each.result().root for each in made}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(("kept", "how"), [(b"\xff\xfe", "are not text"), (b"", "are gone")])
def test_damaged_hashes_of_admin_keys_are_named(kept: bytes, how: str, tmp_path: Path) -> None:
    """Else another owner's key would be made, and the one that is in use refused."""
    (tmp_path / "admin_keys").write_bytes(kept)
    with pytest.raises(SecretLostError, match=rf"admin_keys {how}.*Restore"):
        made_keys(Settings(data_dir=tmp_path))


@pytest.mark.parametrize("kept", ["{", "[]", '{"acme": 1}'])
async def test_a_damaged_note_of_the_demo_is_named(kept: str, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(kept)
    async with httpx.AsyncClient() as http:
        with pytest.raises(CliError, match=r"demo\.json is damaged"):
            await Demo(http, "tna_x", tmp_path).ensure([])


@pytest.mark.parametrize("kept", [b"\n", b"\xff\xfe"])
def test_an_empty_or_damaged_key_of_the_demo_is_none(kept: bytes, tmp_path: Path) -> None:
    (tmp_path / "admin_key").write_bytes(kept)
    key = kept_admin_key(Settings(data_dir=tmp_path), lambda: "tna_made").admin_key
    assert key is not None
    assert key.get_secret_value() == "tna_made"


@contextmanager
def debian_postgres(folder: Path) -> Iterator[str]:
    """A cluster of Debian's PostgreSQL 15 on a port, run by the user `postgres`, with a database
    whose owner is an ordinary role that may create roles: the operator's case."""
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    folder.mkdir()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
        for parent in folder.parents:
            if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o77 == 0:
                parent.chmod(0o711)  # pytest's own folders are closed to others
    switch = {"user": user.pw_uid, "group": user.pw_gid} if user else {}
    common = {"cwd": "/", "check": True, "stdout": subprocess.DEVNULL, **switch}
    make = [DEBIAN_POSTGRES / "initdb", "-D", folder / "d", "-U", "boss", "--auth=trust", "-N"]
    subprocess.run(make, **common)  # type: ignore[call-overload]
    port = free_port()
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories="
    control = [DEBIAN_POSTGRES / "pg_ctl", "-D", folder / "d", "-w"]
    start = [*control, "-l", folder / "log", "-o", options, "start"]
    subprocess.run(start, **common)  # type: ignore[call-overload]
    try:
        boss = f"postgresql://boss@127.0.0.1:{port}/postgres"
        with psycopg.connect(boss, autocommit=True) as connection:
            connection.execute("CREATE ROLE operator LOGIN CREATEROLE")
            connection.execute("CREATE DATABASE tenora OWNER operator")
        yield f"postgresql://operator@127.0.0.1:{port}/tenora"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], **common)  # type: ignore[call-overload]


@contextmanager
def debian_redis(folder: Path) -> Iterator[str]:
    port = free_port()
    folder.mkdir()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.skipif(
    not (DEBIAN_POSTGRES / "postgres").exists() or shutil.which("redis-server") is None,
    reason="needs Debian's PostgreSQL 15 and redis-server, which this machine lacks",
)
async def test_the_operators_own_servers(tmp_path: Path) -> None:
    """The whole HTTP layer over servers that are not ours, as an owner who is no superuser."""
    with ExitStack() as stack:
        database_url = stack.enter_context(debian_postgres(tmp_path / "postgres"))
        redis_url = stack.enter_context(debian_redis(tmp_path / "redis"))
        prepare_database(database_urls(database_url, KEY, DEFAULT))
        prepare_database(database_urls(database_url, KEY, DEFAULT))
        settings = Settings(
            data_dir=tmp_path / "data",
            database_url=database_url,
            redis_url=redis_url,
            admin_key=SecretStr(ADMIN_KEY),
            secret=SecretStr(SECRET),
        )
        async with running_api(settings, tmp_path / "api") as api:
            await api.put_plan("one", {"requests_per_min": 100, "parallel_requests": 1})
            mine, theirs = await api.new_tenant("mine", "one"), await api.new_tenant("theirs")
            listed = (await api.call(mine.key, "GET", "/v1/api_keys")).json()["data"]
            assert [row["id"] for row in listed] == [mine.key_id]
            refused = await api.call(mine.key, "DELETE", f"/v1/api_keys/{theirs.key_id}")
            assert refused.status_code == 404
            tenant = await api.state.auth.tenant(mine.key)
            async with await api.state.limits.acquire(tenant, 5):
                assert (await api.state.limits.now(tenant)).parallel == 1
            assert await problems_of(api.state) == []
            assert (await api.http.get("/readyz")).status_code == 200
