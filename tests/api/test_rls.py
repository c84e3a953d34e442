"""Row-level security, asked of the catalog and of the server itself: whatever a query forgets, a
tenant's session sees and writes the tenant's rows only. Once in the schema `public`, and once in
that of a second installation beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import URL

from api_harness import Api
from platform_fixtures import Servers, plain_url
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import Base, DatabaseUrls
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.settings import Settings

TABLES_WITHOUT_TENANT = {"alembic_version", "plans", "tenants"}


@pytest.fixture(scope="module", params=[DEFAULT, Installation("second")], ids=str)
def installation(request: pytest.FixtureRequest) -> Installation:
    assert isinstance(request.param, Installation)
    return request.param


@pytest.fixture(scope="module")
def urls(servers: Servers, database_url: str, installation: Installation) -> DatabaseUrls:
    urls = database_urls(database_url, servers.secret, installation)
    prepare_database(urls)
    return urls


@pytest.fixture(scope="module")
def settings(settings: Settings, urls: DatabaseUrls) -> Settings:
    return settings.model_copy(update={"installation": urls.installation.name})


def connect(url: URL) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(plain_url(url.render_as_string(hide_password=False)), autocommit=True)


@pytest.fixture
def owner(urls: DatabaseUrls) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with connect(urls.owner) as connection:
        yield connection


@pytest.fixture
def app(urls: DatabaseUrls) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with connect(urls.app) as connection:
        yield connection


def tenant_tables(owner: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """Every table with a column of a tenant, from the catalog: none can be forgotten. Not the parts
    of one: nobody but the owner may name them."""
    found = owner.execute(
        "select distinct c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')"
        " and not c.relispartition and not a.attisdropped"
        " and a.attname in ('tenant_id', 'tenant_no', 'chain') order by 1"
    )
    return [str(row[0]) for row in found]


def test_every_tenant_table_is_forced_and_has_policies(
    owner: psycopg.Connection[tuple[object, ...]], installation: Installation
) -> None:
    app_role = installation.app_role
    tables = [*tenant_tables(owner), "tenants"]
    assert {"api_keys", "audit_logs"} <= set(tables)
    for table in tables:
        flags = owner.execute(
            "select relrowsecurity, relforcerowsecurity from pg_class where oid = %s::regclass",
            [table],
        ).fetchone()
        assert flags == (True, True), f"{table} is not under forced row-level security"
        policies = owner.execute(
            "select roles::text[], cmd, qual, with_check from pg_policies"
            " where schemaname = current_schema() and tablename = %s",
            [table],
        ).fetchall()
        for_app = [policy for policy in policies if app_role in str(policy[0])]
        assert for_app, f"{table} has no policy for {app_role}"
        for roles, _, condition, check in policies:
            assert "public" not in str(roles), f"{table} has a policy for everybody"
            if app_role in str(roles):
                for expression in filter(None, (condition, check)):
                    assert "current_setting" in str(expression), (table, expression)
                    assert "NULLIF" in str(expression), (table, expression)


def test_nobody_reads_a_part_of_a_table(
    owner: psycopg.Connection[tuple[object, ...]], installation: Installation
) -> None:
    """The rules are the whole table's."""
    parts = owner.execute(
        "select c.oid::regclass::text from pg_class c"
        " where c.relnamespace = current_schema()::regnamespace and c.relispartition"
        " and c.relkind = 'r'"
    ).fetchall()
    assert len(parts) >= 5
    for (part,) in parts:
        for role in (installation.app_role, installation.admin_role):
            rights = "select has_table_privilege(%s, %s, 'SELECT, INSERT, UPDATE, DELETE')"
            assert owner.execute(rights, [role, part]).fetchone() == (False,), (role, part)


def test_no_table_is_outside_the_rule(
    owner: psycopg.Connection[tuple[object, ...]], installation: Installation
) -> None:
    """A table that tenants can read either has a tenant, and the rule above, or is known not to."""
    readable = owner.execute(
        "select table_name from information_schema.role_table_grants"
        " where grantee = %s and privilege_type = 'SELECT' and table_schema = current_schema()",
        [installation.app_role],
    ).fetchall()
    without = {str(row[0]) for row in readable} - set(tenant_tables(owner))
    writable = owner.execute(
        "select table_name from information_schema.role_table_grants"
        " where grantee = %s and privilege_type <> 'SELECT' and table_schema = current_schema()",
        [installation.app_role],
    ).fetchall()
    assert {"plans", "tenants"} <= without
    assert not {str(row[0]) for row in writable} & without, "tenants write operators' tables"


def test_the_roles_are_ordinary(
    owner: psycopg.Connection[tuple[object, ...]], installation: Installation
) -> None:
    for role in (installation.app_role, installation.admin_role):
        row = owner.execute(
            "select rolsuper, rolbypassrls, rolcreaterole, rolcreatedb from pg_roles"
            " where rolname = %s",
            [role],
        ).fetchone()
        assert row == (False, False, False, False), role
        owned = owner.execute("select 1 from pg_tables where tableowner = %s", [role]).fetchall()
        assert not owned, "an owner could lift the policies"


def test_uniqueness_does_not_leak(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    """A unique index over what tenants choose would tell one tenant what another has. Allowed are
    those with the tenant in them, and ids, which the server makes."""
    found = owner.execute(
        "select tablename, indexdef from pg_indexes where schemaname = current_schema()"
        " and indexdef like 'CREATE UNIQUE%'"
    ).fetchall()
    tables = set(tenant_tables(owner))
    made_by_server = re.compile(r"^(id|event_id|\w+_id|chain|line_id|key|no|request|number)$")
    for table, definition in found:
        columns = re.search(r"\((.*?)\)", str(definition))
        assert columns is not None
        names = [name.strip() for name in columns.group(1).split(",")]
        if table in tables:
            fine = "tenant_id" in str(definition) or made_by_server.match(names[0])
            assert fine, definition


async def test_without_a_tenant_nothing_is_seen(
    api: Api,
    app: psycopg.Connection[tuple[object, ...]],
    owner: psycopg.Connection[tuple[object, ...]],
) -> None:
    tenant = await api.new_tenant()
    for table in {*tenant_tables(owner), "tenants"} - {"price_versions"}:  # most are for all
        seen = app.execute(sql.SQL("select * from {}").format(sql.Identifier(table))).fetchall()
        assert seen == [], f"{table} is open to a session without a tenant"
    with app.transaction():
        app.execute("select set_config('app.tenant', %s, true)", [tenant.id])
        assert len(app.execute("select * from api_keys").fetchall()) == 1
    # The setting is '' now, not NULL: that too must be nobody.
    assert app.execute("select current_setting('app.tenant', true)").fetchone() == ("",)
    assert app.execute("select * from api_keys").fetchall() == []


async def test_a_tenant_sees_and_writes_itself_only(
    api: Api, app: psycopg.Connection[tuple[object, ...]]
) -> None:
    mine, theirs = await api.new_tenant("mine"), await api.new_tenant("theirs")
    with app.transaction():
        app.execute("select set_config('app.tenant', %s, true)", [mine.id])
        assert app.execute("select id from tenants").fetchall() == [(mine.id,)]
        assert app.execute("select id from api_keys").fetchall() == [(mine.key_id,)]
        changed = app.execute(
            "update api_keys set revoked_at = now() where id = %s", [theirs.key_id]
        )
        assert changed.rowcount == 0
        deleted = app.execute("delete from api_keys where tenant_id = %s", [theirs.id])
        assert deleted.rowcount == 0
    insert = (
        "insert into api_keys (id, tenant_id, name, prefix, hash, scopes)"
        " values (%s, %s, 'x', 'x', 'x', '{}')"
    )

    def as_mine(statement: LiteralString, values: list[str]) -> None:
        with app.transaction():
            app.execute("select set_config('app.tenant', %s, true)", [mine.id])
            app.execute(statement, values)

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_mine(insert, ["key_forged", theirs.id])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_mine("update api_keys set tenant_id = %s", [theirs.id])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute("update tenants set status = 'active'")


async def test_the_key_lookup_shows_one_prefix_only(
    api: Api, app: psycopg.Connection[tuple[object, ...]]
) -> None:
    one, _ = await api.new_tenant("one"), await api.new_tenant("other")
    with app.transaction():
        app.execute("select set_config('app.key_prefix', %s, true)", [one.key.split("_")[1]])
        assert app.execute("select id from api_keys").fetchall() == [(one.key_id,)]
        assert app.execute("select id from tenants").fetchall() == []
        assert app.execute("delete from api_keys").rowcount == 0


async def test_a_pooled_connection_forgets_its_tenant(api: Api) -> None:
    """One connection, many tenants after each other: as the pool hands it on."""
    tenants = [await api.new_tenant(str(number)) for number in range(12)]
    for tenant in tenants * 2:
        listed = (await api.call(tenant.key, "GET", "/v1/api_keys")).json()["data"]
        assert [row["id"] for row in listed] == [tenant.key_id]


def test_rows_and_migrations_agree(owner: psycopg.Connection[tuple[object, ...]]) -> None:
    """Every mapped table and column exists; migrations are the schema's only source."""
    import tenora_platform.app  # noqa: F401  (maps every table)

    for table in Base.metadata.sorted_tables:
        found = owner.execute(
            "select column_name, is_nullable from information_schema.columns"
            " where table_schema = current_schema() and table_name = %s",
            [table.name],
        ).fetchall()
        columns = {str(name): nullable == "YES" for name, nullable in found}
        assert columns, f"{table.name} is not made by any migration"
        assert columns == {column.name: bool(column.nullable) for column in table.columns}, (
            table.name
        )
