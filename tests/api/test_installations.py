"""Several installations on one PostgreSQL server, in two databases and in two schemas of one: each
with its own secret, and nothing of one within the other's reach."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from api_harness import running_api
from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.bootstrap import (
    DatabaseSetupError,
    database_urls,
    migration_state,
    prepare_database,
)
from tenora_platform.db import Database, DatabaseUrls
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.locks import lock, lock_shared, try_lock
from tenora_platform.secret import ServerSecret
from tenora_platform.settings import Settings

BLUE = Installation("blue")
BLUE_SECRET = "another-secret-of-another-installation"


def connect(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(plain_url(url.render_as_string(hide_password=False)), autocommit=True)


def blue_urls(url: str) -> DatabaseUrls:
    return database_urls(url, ServerSecret(BLUE_SECRET.encode()), BLUE)


def blue_settings(settings: Settings, url: str, folder: Path) -> Settings:
    assert settings.redis_url is not None
    changes: dict[str, object] = {"installation": "blue", "secret": SecretStr(BLUE_SECRET)}
    changes["redis_url"] = f"{settings.redis_url}?db=1"
    return settings.model_copy(update={**changes, "database_url": url, "data_dir": folder})


@pytest.mark.parametrize("name", ["tenora", "blue", "eu_2", "user", "a" * 40])
def test_names_that_can_be_used(name: str) -> None:
    assert Settings(installation=name).installation == name


@pytest.mark.parametrize(
    "name", ["Blue", "2nd", "a-b", "pg_mine", "public", "information_schema", 'a"b', "a" * 41]
)
def test_names_that_cannot(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a valid name of an installation"):
        Settings(installation=name)


def test_the_default_keeps_the_names_it_had() -> None:
    assert DEFAULT.name == Settings().installation
    assert Installation("tenora") == DEFAULT
    assert (DEFAULT.app_role, DEFAULT.admin_role) == ("tenora_app", "tenora_admin")
    assert DEFAULT.schema == "public"


@pytest.mark.parametrize("shared_database", [False, True], ids=["databases", "schemas"])
async def test_two_work_side_by_side(
    servers: Servers, settings: Settings, tmp_path: Path, shared_database: bool
) -> None:
    assert settings.database_url is not None
    url = settings.database_url if shared_database else servers.new_database()
    prepare_database(blue_urls(url))
    async with (
        running_api(settings, tmp_path / "one") as one,
        running_api(blue_settings(settings, url, tmp_path / "data"), tmp_path / "two") as two,
    ):
        ours, theirs = await one.new_tenant("ours"), await two.new_tenant("theirs")
        for api, tenant in ((one, ours), (two, theirs)):
            listed = (await api.call(tenant.key, "GET", "/v1/api_keys")).json()["data"]
            assert [row["id"] for row in listed] == [tenant.key_id]
            found = (await api.admin("GET", "/admin/v1/tenants")).json()["data"]
            assert tenant.id in [row["id"] for row in found]
            assert {ours.id, theirs.id} & {row["id"] for row in found} == {tenant.id}
        assert (await one.call(theirs.key, "GET", "/v1/limits")).status_code == 401
        assert (await two.call(ours.key, "GET", "/v1/limits")).status_code == 401
    assert_apart(database_urls(settings.database_url, servers.secret, DEFAULT), blue_urls(url))


def assert_apart(one: DatabaseUrls, two: DatabaseUrls) -> None:
    """No role of the one reads a table of the other, nor sees that it has rows."""
    for mine, other in ((one, two), (two, one)):
        for role in (mine.app, mine.admin):
            reach = other.owner.set(username=role.username, password=role.password)
            with connect(reach) as connection:
                schema = other.installation.schema
                statements = connection.execute(
                    "select format('select count(*) from %%I.%%I', %s::text, relname) from pg_class"
                    " where relnamespace = to_regnamespace(%s) and relkind = 'r'",
                    [schema, schema],
                ).fetchall()
                assert len(statements) > 10
                for (statement,) in statements:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(str(statement).encode())


def test_migrations_of_one_leave_the_other_alone(servers: Servers) -> None:
    """From an older revision, with rows, beside an installation at the newest one."""
    url = servers.new_database()
    default, blue = database_urls(url, servers.secret, DEFAULT), blue_urls(url)
    prepare_database(blue, "0004")
    head = migration_state(default)[1]
    assert migration_state(blue) == ("0004", head)
    assert migration_state(default) == (head, head)
    with connect(blue.owner) as owner:
        owner.execute(
            """
            INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free');
            INSERT INTO uploads (id, tenant_id, status, bytes, expires_at)
              VALUES ('u', 't', 'completed', 1, now());
            INSERT INTO upload_parts (id, tenant_id, upload_id, bytes, sha256, position)
              VALUES ('p', 't', 'u', 1, '', 0);
            """
        )
        prepare_database(blue)
        assert owner.execute("SELECT part_ids FROM uploads").fetchall() == [(["p"],)]
        assert owner.execute("SELECT count(*) FROM public.uploads").fetchone() == (0,)
        where = "SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        versions = owner.execute(f"{where} WHERE relname = 'alembic_version' ORDER BY 1".encode())
        assert versions.fetchall() == [("blue",), ("public",)]
    assert migration_state(blue) == (head, head)


async def test_locks_are_an_installations_own(servers: Servers) -> None:
    """A lock that another installation holds makes this one neither wait nor skip its work."""
    url = servers.new_database()
    prepare_database(blue_urls(url))
    here = Database(database_urls(url, servers.secret, DEFAULT))
    there = Database(blue_urls(url))
    try:
        async with here.admin_session() as first, here.admin_session() as second:
            await lock(first, "collector")
            assert not await try_lock(second, "collector")
            assert await try_lock(second, "another")
            async with there.admin_session() as other:
                assert await try_lock(other, "collector")
        async with here.admin_session() as first, here.admin_session() as second:
            await lock_shared(first, "prices")
            await lock_shared(second, "prices")
            async with here.admin_session() as third:
                assert not await try_lock(third, "prices")
    finally:
        await here.close()
        await there.close()


def test_the_same_name_twice_on_a_server_is_refused(servers: Servers) -> None:
    """Roles are the server's: a second installation would lock the first one out."""
    first = database_urls(servers.new_database(), ServerSecret(b"first"), Installation("twice"))
    prepare_database(first)
    url = servers.new_database()
    second = database_urls(url, ServerSecret(b"second"), Installation("twice"))
    with pytest.raises(DatabaseSetupError, match=f"{first.owner.database}.*TENORA_INSTALLATION"):
        prepare_database(second)
    with connect(first.app) as connection:
        assert connection.execute("select count(*) from tenants").fetchone() == (0,)
    # The secret of one installation may change, but not by mistake.
    changed = database_urls(
        with_database(url, str(first.owner.database)), ServerSecret(b"new"), Installation("twice")
    )
    with pytest.raises(DatabaseSetupError, match="another server secret"):
        prepare_database(changed)
    with connect(first.owner) as connection:
        connection.execute("UPDATE twice.database_identity SET secret_check = NULL")
    prepare_database(changed)
    with connect(changed.admin) as connection:
        assert connection.execute("select count(*) from tenants").fetchone() == (0,)


def test_an_owner_who_may_not_is_told_how(servers: Servers) -> None:
    url = servers.new_database()
    servers.execute("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'pw'", "visitor")
    owner = make_url(url).set(username="visitor", password="pw")
    as_visitor = blue_urls(owner.render_as_string(hide_password=False))
    with pytest.raises(DatabaseSetupError, match="GRANT CREATE ON DATABASE"):
        prepare_database(as_visitor)
    with connect(make_url(url)) as connection:
        connection.execute("CREATE SCHEMA blue")
    with pytest.raises(DatabaseSetupError, match="another TENORA_INSTALLATION"):
        prepare_database(as_visitor)
