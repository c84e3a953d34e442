"""Brings a database to the state that an installation needs: its two login roles, and its schema by
migrations under an advisory lock. Runs as the database's owner, before anything else connects."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from psycopg.errors import LockNotAvailable, ReadOnlySqlTransaction
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from tenora_platform.db import (
    Base,
    DatabaseUrls,
    bounded,
    psycopg_url,
    shown,
    with_options,
)
from tenora_platform.installation import DEFAULT, Installation
from tenora_platform.resources import migrations_folder
from tenora_platform.secret import ServerSecret
from tenora_platform.secret_proof import (
    IdentityGoneError,
    has_identity,
    is_proved,
    secret_check,
    table_of_others,
)

_LOCK_TIMEOUT_S = 30  # for which requests queue behind a migration that waits for a table
_TURN_S = 0.1
UNFINISHED = "restore_unfinished"
"""A table that is there while a restore fills the database."""

_POOLER = (
    "TENORA_DATABASE_URL leads to a connection pooler (such as PgBouncer) that does not keep a "
    "session for each connection; give the address of PostgreSQL itself."
)
_POOLERS_WORDS = ("unsupported startup parameter", "statement pooling mode")  # PgBouncer's
_LOCK = 0x7E20_0A01  # advisory lock: one process at a time makes roles and migrates


class DatabaseSetupError(Exception):
    """The database is unreachable, or its user may not do what is needed; says what to do."""


def database_urls(
    database_url: str, secret: ServerSecret, installation: Installation
) -> DatabaseUrls:
    """The three ways in. The roles' passwords follow from the server secret, so that every worker
    knows them and nobody has to store them."""
    # Said as the connection opens, so that no statement can be run in another schema.
    search_path = {"search_path": installation.schema}
    owner = with_options(bounded(psycopg_url(database_url)), search_path)

    def login(role: str) -> URL:
        return owner.set(username=role, password=secret.mac("database-role", role))

    return DatabaseUrls(
        installation=installation,
        secret=secret,
        owner=owner,
        app=login(installation.app_role),
        admin=login(installation.admin_role),
    )


def prepare_database(
    urls: DatabaseUrls,
    revision: str = "head",
    *,
    may_prepare: Callable[[Connection], None] | None = None,
) -> None:
    """Make the roles and migrate to `revision`; safe to run from many processes at once.
    `may_prepare` is called before anything but the schema is made, and raises where it must not be;
    without it, a database that a restore has not finished is refused. Raises DatabaseSetupError."""
    if not (migrations_folder() / "env.py").is_file():
        raise DatabaseSetupError(
            f"The migrations are not at {migrations_folder()}. Install a wheel that was made by "
            "`make wheel`, or run Tenora from a checkout (make setup)."
        )
    engine = _owner_engine(urls.owner)
    key = {"key": _lock_key(urls.installation)}
    try:
        with engine.connect() as connection:
            refuse_pooler(engine, connection, urls.installation.schema)
            _take_turn(connection, key)
            try:
                _make_schema(connection, urls)
                (may_prepare or refuse_unfinished)(connection)
                _refuse_others(connection, urls, _revision(connection, urls))
                _make_roles(connection, urls)
                connection.exec_driver_sql(f"SET lock_timeout = '{_LOCK_TIMEOUT_S}s'")
                connection.commit()
                command.upgrade(_alembic(connection, urls), revision)
                _note_secret(connection, urls)
            finally:
                connection.rollback()
                connection.execute(text("select pg_advisory_unlock(:key)"), key)
                connection.commit()
    except OperationalError as error:
        if isinstance(error.orig, LockNotAvailable):
            raise DatabaseSetupError(
                "A migration could not change a table that was in use for too long, by a worker "
                "of the previous version or by another program. Start again; if that does not "
                "help, stop what uses the database first."
            ) from error
        raise DatabaseSetupError(_unreachable(urls.owner, error)) from error
    except DBAPIError as error:
        raise DatabaseSetupError(_unusable(urls.owner, error)) from error
    finally:
        engine.dispose()


def _take_turn(connection: Connection, key: Mapping[str, int]) -> None:
    """Wait for the advisory lock, in no transaction: an index that its holder makes beside writers
    waits for every transaction that began before, and both would wait for ever."""
    while not connection.scalar(text("select pg_try_advisory_lock(:key)"), key):
        connection.commit()
        time.sleep(_TURN_S)
    connection.commit()


def refuse_pooler(engine: Engine, connection: Connection, schema: str) -> None:
    """Raises DatabaseSetupError where what one connection leaves in its session is met by another,
    or what is said as it opens is lost: locks would be released by others, and tables be made in
    another schema. Looked for with a second connection while the first is idle, which then holds
    what the pooler would give back to the first."""
    mark = secrets.token_hex(8)
    connection.execute(text("select set_config('tenora.connection', :mark, false)"), {"mark": mark})
    path = connection.scalar(text("show search_path"))
    connection.commit()
    left = text("select current_setting('tenora.connection', true)")
    with engine.connect() as other:
        met = other.scalar(left) == mark
        kept = met or connection.scalar(left) == mark
    connection.commit()
    if met or not kept or path != schema:
        raise DatabaseSetupError(_POOLER)


def migration_state(urls: DatabaseUrls) -> tuple[str | None, str | None]:
    """(the schema's revision, the newest one known here). Raises DatabaseSetupError."""
    engine = _owner_engine(urls.owner)
    try:
        with engine.connect() as connection:
            refuse_pooler(engine, connection, urls.installation.schema)
            refuse_unfinished(connection)
            revision = _revision(connection, urls)
            head = _scripts(connection, urls).get_current_head()
            if revision == head:
                _refuse_others(connection, urls, revision)
            return revision, head
    except OperationalError as error:
        raise DatabaseSetupError(_unreachable(urls.owner, error)) from error
    except DBAPIError as error:
        raise DatabaseSetupError(_unusable(urls.owner, error)) from error
    finally:
        engine.dispose()


def refuse_unfinished(connection: Connection) -> None:
    """Raises DatabaseSetupError for a database that a restore was to fill and has not."""
    found = connection.scalar(text("select to_regclass(:name)"), {"name": UNFINISHED})
    connection.commit()
    if found is not None:
        raise DatabaseSetupError(
            "A restore into this database has not come to its end. Run `tenora restore` with the "
            "same backup again, or remove database and object store and begin anew."
        )


def most_connections(urls: DatabaseUrls) -> int:
    """What the server takes, from everybody. Raises DatabaseSetupError."""
    engine = _owner_engine(urls.owner)
    try:
        with engine.connect() as connection:
            return int(connection.execute(text("show max_connections")).scalar_one())
    except OperationalError as error:
        raise DatabaseSetupError(_unreachable(urls.owner, error)) from error
    finally:
        engine.dispose()


def _owner_engine(owner: URL) -> Engine:
    return create_engine(owner, poolclass=NullPool, connect_args={"connect_timeout": 10})


def _lock_key(installation: Installation) -> int:
    """Advisory locks are the database's: installations in two schemas of one do not wait for each
    other."""
    return _LOCK if installation == DEFAULT else _LOCK | crc32(installation.name.encode()) << 31


def _alembic(connection: Connection, urls: DatabaseUrls) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = Base.metadata
    config.attributes["installation"] = urls.installation
    config.attributes["secret"] = urls.secret
    return config


def _scripts(connection: Connection, urls: DatabaseUrls) -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic(connection, urls))


def _revision(connection: Connection, urls: DatabaseUrls) -> str | None:
    """The schema's. Raises DatabaseSetupError for one that a newer Tenora has made."""
    opts = {"version_table_schema": urls.installation.schema}
    current = MigrationContext.configure(connection, opts=opts).get_current_revision()
    connection.commit()
    known = {each.revision for each in _scripts(connection, urls).walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseSetupError(
            f"The database is at revision {current}, which this version of Tenora does not "
            "know: a newer version has migrated it. Start that version, or restore the database "
            "from an older backup."
        )
    return current


def _make_schema(connection: Connection, urls: DatabaseUrls) -> None:
    """The installation's schema, made if it is not there. `public` is every database's."""
    schema, owner = urls.installation.schema, urls.owner.username
    query = text(
        "select has_schema_privilege(oid, 'CREATE') from pg_namespace where nspname = :schema"
    )
    may_create = connection.scalar(query, {"schema": schema})
    if may_create is False:
        raise DatabaseSetupError(
            f"The database user {owner!r} may not create tables in the schema {schema!r}. If "
            "the schema belongs to another program, choose another TENORA_INSTALLATION. If not, "
            f"run as the schema's owner: GRANT CREATE, USAGE ON SCHEMA {schema} TO {owner}"
        )
    try:
        if may_create is None:
            make = sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))
            connection.exec_driver_sql(make.as_string(None))
        connection.commit()
    except ProgrammingError as error:
        connection.rollback()
        raise DatabaseSetupError(
            f"The database user {owner!r} may not create the schema {schema!r} for this "
            f"installation ({_first_line(error)}). Run as the database's owner: GRANT CREATE ON "
            f"DATABASE {urls.owner.database} TO {owner}"
        ) from error


def _refuse_others(connection: Connection, urls: DatabaseUrls, revision: str | None) -> None:
    """A database that is not this installation's, before anything is changed: the roles would get
    other passwords, and nothing in the database could be read or proved."""
    schema = urls.installation.schema
    if revision is None:
        other = table_of_others(connection, urls)
        if other is not None:
            raise DatabaseSetupError(
                f"The schema {schema!r} of the database {urls.owner.database!r} has tables (such "
                f"as {other!r}) and no record of Tenora's migrations: they are another program's, "
                "or the table alembic_version was emptied. Name an empty database in "
                "TENORA_DATABASE_URL, or a schema of its own with TENORA_INSTALLATION; if it is "
                "Tenora's, restore it from a backup."
            )
        return
    head = _scripts(connection, urls).get_current_head()
    try:
        if revision == head and not has_identity(connection):
            raise IdentityGoneError
        is_ours = is_proved(connection, urls)
    except IdentityGoneError as error:
        raise DatabaseSetupError(
            "The database has lost the row that says which database it is (in "
            f"{schema}.database_identity). Rows of other tables may be missing, too: restore the "
            "database from a backup."
        ) from error
    if is_ours is None:  # nobody has ever done anything in it, but its roles may be in use
        is_ours = all(_can_log_in(url) for url in _roles(connection, urls))
    if not is_ours:
        more = (
            " If the secret is lost for good, run as the database's owner, and give everybody new "
            f"keys: UPDATE {schema}.database_identity SET secret_check = NULL"
            if has_identity(connection)
            else ""
        )
        raise DatabaseSetupError(
            "This database was created with another server secret. With this one, no key works "
            "and the books cannot be verified. Set TENORA_SECRET to the installation's own "
            f"secret, or restore the file `secret` in its data directory.{more}"
        )


def _roles(connection: Connection, urls: DatabaseUrls) -> list[URL]:
    """Those of our logins that exist."""
    query = text("select rolname from pg_roles")
    there = set(connection.scalars(query))
    connection.commit()
    return [url for url in (urls.app, urls.admin) if url.username in there]


def _note_secret(connection: Connection, urls: DatabaseUrls) -> None:
    if has_identity(connection):  # not at an older revision
        statement = text("update database_identity set secret_check = :check")
        connection.execute(statement, {"check": secret_check(urls)})
        connection.commit()


def _make_roles(connection: Connection, urls: DatabaseUrls) -> None:
    for url in (urls.app, urls.admin):
        assert url.username is not None
        assert isinstance(url.password, str)
        try:
            _make_role(connection, urls.installation, url, url.username, url.password)
            connection.commit()
        except ProgrammingError as error:
            connection.rollback()
            raise DatabaseSetupError(
                f"The database user {urls.owner.username!r} may not create the login role "
                f"{url.username!r} ({_first_line(error)}). Set TENORA_DATABASE_URL to a user "
                f"with CREATEROLE (ALTER ROLE {urls.owner.username} CREATEROLE) that owns the "
                "database."
            ) from error


def _make_role(
    connection: Connection, installation: Installation, url: URL, role: str, password: str
) -> None:
    name = sql.Identifier(role)
    query = text("select rolsuper or rolbypassrls from pg_roles where rolname = :role")
    unsafe = connection.scalar(query, {"role": role})
    if unsafe:
        raise DatabaseSetupError(
            f"The existing role {role!r} is a superuser or bypasses row-level security, which "
            f"would let tenants see each other. Run: ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"
        )
    if unsafe is None or not _can_log_in(url):
        _refuse_role_of_others(connection, installation, role)
        # NOSUPERUSER and NOBYPASSRLS are the default of a new role; only a superuser may say them.
        verb = sql.SQL("CREATE ROLE" if unsafe is None else "ALTER ROLE")
        statement = sql.SQL("{} {} LOGIN PASSWORD {}").format(verb, name, sql.Literal(password))
        connection.exec_driver_sql(statement.as_string(None))
    database = sql.Identifier(url.database or "postgres")
    schema = sql.Identifier(installation.schema)
    for grant in ("GRANT CONNECT ON DATABASE {database}", "GRANT USAGE ON SCHEMA {schema}"):
        statement = sql.SQL(grant + " TO {role}").format(
            database=database, schema=schema, role=name
        )
        connection.exec_driver_sql(statement.as_string(None))


def _refuse_role_of_others(connection: Connection, installation: Installation, role: str) -> None:
    """Roles are the whole server's. One that our secret does not open and that has rights in
    another database is another installation's, which a new password would lock out."""
    query = text(
        "select string_agg(distinct datname, ', ') from pg_shdepend "
        "join pg_database on pg_database.oid = dbid join pg_roles on pg_roles.oid = refobjid "
        "where rolname = :role and refclassid = 'pg_authid'::regclass "
        "and datname <> current_database()"
    )
    others = connection.scalar(query, {"role": role})
    if others is not None:
        raise DatabaseSetupError(
            f"The login role {role!r} exists with another password and is used by the database "
            f"{others}: another installation on this server is also named "
            f"{installation.name!r}. Give this installation a name of its own in "
            "TENORA_INSTALLATION; if both are the same installation, give them the same "
            "TENORA_SECRET."
        )


def _can_log_in(url: URL) -> bool:
    """Spares the ALTER ROLE, and the right to it, on every start but the first."""
    engine = _owner_engine(url)
    try:
        with engine.connect():
            return True
    except OperationalError:
        return False
    finally:
        engine.dispose()


def _unreachable(url: URL, error: Exception) -> str:
    if any(said in str(error) for said in _POOLERS_WORDS):
        return _POOLER
    return (
        f"The database at {shown(url)} cannot be used: {_first_line(error)}. Check that the server "
        "is running, and that user, password and database name in TENORA_DATABASE_URL are right."
    )


def _unusable(url: URL, error: DBAPIError) -> str:
    where = shown(url)
    if isinstance(error.orig, ReadOnlySqlTransaction):
        return (
            f"The database at {where} takes no writes ({_first_line(error)}): it is a standby, or "
            "default_transaction_read_only is set. Name the primary in TENORA_DATABASE_URL."
        )
    return (
        f"The database at {where} cannot be prepared: {_first_line(error)}. Something in it is not "
        "as Tenora's migrations have left it. If it is another program's, name a database of "
        "Tenora's own in TENORA_DATABASE_URL; if not, restore it from a backup."
    )


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0]
