"""Brings a database to the state the platform needs: its two login roles, and the schema by
migrations under an advisory lock. Runs as the database's owner, before anything else connects."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from tenora_platform.db import ADMIN_ROLE, APP_ROLE, Base, DatabaseUrls, psycopg_url
from tenora_platform.secret import ServerSecret

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
_LOCK = 0x7E20_0A01  # advisory lock: one process at a time makes roles and migrates


class DatabaseSetupError(Exception):
    """The database is unreachable, or its user may not do what is needed; says what to do."""


def database_urls(database_url: str, secret: ServerSecret) -> DatabaseUrls:
    """The three ways in. The roles' passwords follow from the server secret, so that every worker
    knows them and nobody has to store them."""
    owner = psycopg_url(database_url)
    return DatabaseUrls(
        owner=owner,
        app=owner.set(username=APP_ROLE, password=_password(secret, APP_ROLE)),
        admin=owner.set(username=ADMIN_ROLE, password=_password(secret, ADMIN_ROLE)),
    )


def prepare_database(urls: DatabaseUrls, revision: str = "head") -> None:
    """Make the roles and migrate to `revision`; safe to run from many processes at once. Raises
    DatabaseSetupError."""
    if not (MIGRATIONS / "env.py").is_file():
        raise DatabaseSetupError(
            f"The migrations are not at {MIGRATIONS}. Run Tenora from a checkout (make setup)."
        )
    engine = _owner_engine(urls.owner)
    try:
        with engine.connect() as connection:
            connection.execute(text("select pg_advisory_lock(:key)"), {"key": _LOCK})
            connection.commit()
            try:
                _make_roles(connection, urls)
                command.upgrade(_alembic(connection), revision)
            finally:
                connection.rollback()
                connection.execute(text("select pg_advisory_unlock(:key)"), {"key": _LOCK})
                connection.commit()
    except OperationalError as error:
        raise DatabaseSetupError(_unreachable(urls.owner, error)) from error
    finally:
        engine.dispose()


def migration_state(owner: URL) -> tuple[str | None, str | None]:
    """(the database's revision, the newest one known here). Raises DatabaseSetupError."""
    engine = _owner_engine(owner)
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            head = ScriptDirectory.from_config(_alembic(connection)).get_current_head()
            return current, head
    except OperationalError as error:
        raise DatabaseSetupError(_unreachable(owner, error)) from error
    finally:
        engine.dispose()


def _owner_engine(owner: URL) -> Engine:
    return create_engine(owner, poolclass=NullPool, connect_args={"connect_timeout": 10})


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["metadata"] = Base.metadata
    return config


def _password(secret: ServerSecret, role: str) -> str:
    return secret.mac("database-role", role)


def _make_roles(connection: Connection, urls: DatabaseUrls) -> None:
    for url in (urls.app, urls.admin):
        assert url.username is not None
        assert isinstance(url.password, str)
        try:
            _make_role(connection, url, url.username, url.password)
            connection.commit()
        except ProgrammingError as error:
            connection.rollback()
            raise DatabaseSetupError(
                f"The database user {urls.owner.username!r} may not create the login role "
                f"{url.username!r} ({_first_line(error)}). Give TENORA_DATABASE_URL a user with "
                f"CREATEROLE (ALTER ROLE {urls.owner.username} CREATEROLE) that owns the database."
            ) from error


def _make_role(connection: Connection, url: URL, role: str, password: str) -> None:
    name = sql.Identifier(role)
    query = text("select rolsuper or rolbypassrls from pg_roles where rolname = :role")
    unsafe = connection.scalar(query, {"role": role})
    if unsafe:
        raise DatabaseSetupError(
            f"The existing role {role!r} is a superuser or bypasses row-level security, which "
            f"would let tenants see each other. Run: ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS"
        )
    if unsafe is None or not _can_log_in(url):
        # NOSUPERUSER and NOBYPASSRLS are the default of a new role; only a superuser may say them.
        verb = sql.SQL("CREATE ROLE" if unsafe is None else "ALTER ROLE")
        statement = sql.SQL("{} {} LOGIN PASSWORD {}").format(verb, name, sql.Literal(password))
        connection.exec_driver_sql(statement.as_string(None))
    database = sql.Identifier(url.database or "postgres")
    for grant in ("GRANT CONNECT ON DATABASE {database}", "GRANT USAGE ON SCHEMA public"):
        statement = sql.SQL(grant + " TO {role}").format(database=database, role=name)
        connection.exec_driver_sql(statement.as_string(None))


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
    where = url.render_as_string(hide_password=True)
    return (
        f"The database at {where} cannot be used: {_first_line(error)}. Is the server running, and "
        "are user, password and database name in TENORA_DATABASE_URL right?"
    )


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0]
