"""The database: two login roles, two engines, and sessions that cannot leave their tenant. It does
not know the tables; migrations make the schema and `bootstrap` makes the roles."""

from __future__ import annotations

import asyncio
import copy
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Executable, MetaData, TextClause, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, SessionTransaction
from sqlalchemy.pool import ConnectionPoolEntry, ManagesConnection, QueuePool

from tenora_engine.printable import brief, hide_secrets
from tenora_platform import db_link
from tenora_platform.asking import watch
from tenora_platform.installation import Installation
from tenora_platform.mending import mended_parameters
from tenora_platform.secret import ServerSecret

CONNECTIONS = 24
STATEMENT_TIMEOUT_S = 15.0
_LOCK_TIMEOUT_S = 10.0  # before the statement's, so that it can be told from a slow one
_IDLE_TIMEOUT_S = 60.0  # in a transaction: no route waits for its client while it holds one
_SLICE_ROWS = 200  # of thirty columns: 2 ms
_LAST_S = 5.0  # what is under way while the database is closed
_PATIENT_S = 600.0
_PATIENT = {
    # Work beside requests: a statement over a month of usage, and the claim on an upload, which is
    # held for as long as its bytes are fetched and looked through.
    "statement_timeout": f"{_PATIENT_S:.0f}s",
    "lock_timeout": "1min",
    "idle_in_transaction_session_timeout": "1h",
}


class Base(DeclarativeBase):
    """Rows of every domain. Constraint names are fixed so that migrations can name them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """The same database as its owner and as the two roles of the platform. Each leads into the
    installation's schema. By keys of `secret` rows are sealed."""

    installation: Installation
    secret: ServerSecret
    owner: URL
    app: URL
    admin: URL


def bounded(url: URL) -> URL:
    """The URL with `db_link.TCP`, where it does not say otherwise."""
    return url.update_query_dict({k: v for k, v in db_link.TCP.items() if k not in url.query})


def shown(url: URL) -> str:
    """The URL as the operator gave it, without the passwords in it."""
    return hide_secrets(url.difference_update_query(["options", *db_link.TCP]).render_as_string())


def with_options(url: URL, values: Mapping[str, str]) -> URL:
    """The URL with settings for each of its connections, said as it opens; they outrank the role's
    and the database's own."""
    known = url.normalized_query.get("options", ())
    options = [*known, *(f"-c{name}={value}" for name, value in values.items())]
    return url.update_query_dict({"options": " ".join(options)})


def psycopg_url(url: str) -> URL:
    """The operator's URL with the driver we use (`postgres://` and `postgresql://` both do)."""
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql+psycopg")


def libpq_url(url: URL) -> str:
    """The URL, password and all, as PostgreSQL's own library reads it: + is no space there, and a
    space is not left as it is."""
    whole = url.set(drivername="postgresql").render_as_string(hide_password=False)
    place, mark, query = whole.replace(" ", "%20").partition("?")
    return f"{place}{mark}{query.replace('+', '%20')}"


_MENDS = "tenora_mends"  # of a connection's execution options
TENANT, TOLD = "tenant", "told"
"""In `info` of a session: whose rows it may write (if one tenant's), and who is told of what it has
committed (`live.noticing`)."""


def tenants_connections(connections: int) -> int:
    """How many of a process's are for sessions of tenants; the others are the operator's."""
    return connections - max(2, connections // 3)


class WatchedSession(Session):
    """What all sessions are within."""


class Database:
    """Opens sessions as the app role (one tenant's rows) or the admin role (operator's work), over
    at most `connections`. The server ends what takes longer than a request may, and where it does
    not, we do; `patient` gives the work beside requests its time."""

    def __init__(
        self,
        urls: DatabaseUrls,
        *,
        connections: int = CONNECTIONS,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        told: Callable[[str | None, Iterable[str]], None] | None = None,
    ) -> None:
        values = {
            "statement_timeout": statement_timeout_s,
            "lock_timeout": min(_LOCK_TIMEOUT_S, statement_timeout_s * 2 / 3),
            "idle_in_transaction_session_timeout": max(_IDLE_TIMEOUT_S, statement_timeout_s),
        }
        limits = {name: f"{seconds * 1000:.0f}ms" for name, seconds in values.items()}
        limits["cursor_tuple_fraction"] = "1"  # who reads in slices reads all of them
        for_tenants = tenants_connections(connections)
        self.secret = urls.secret
        self._answer_s = statement_timeout_s + db_link.MARGIN_S
        self._app = _engine(with_options(urls.app, limits), for_tenants, self._answer_s)
        for_admin = connections - for_tenants
        self._admin = _engine(with_options(urls.admin, limits), for_admin, self._answer_s)
        self._values: Mapping[str, str] = {}
        self._mends = False
        self._told = told

    def patient(self) -> Database:
        """The same connections, for work that nobody waits for, whose texts are mended."""
        other = copy.copy(self)
        other._values, other._mends = _PATIENT, True
        other._answer_s = _PATIENT_S + db_link.MARGIN_S
        return other

    @asynccontextmanager
    async def tenant_session(self, tenant_id: str) -> AsyncIterator[AsyncSession]:
        """A session that sees and writes this tenant's rows only. Commits when the block ends,
        rolls back when it raises."""
        async with self._session(
            self._app, {"app.tenant": tenant_id}, {TENANT: tenant_id}
        ) as session:
            yield session

    @asynccontextmanager
    async def key_session(self, prefix: str) -> AsyncIterator[AsyncSession]:
        """A session that sees nothing but the API keys of one prefix: for authentication, before
        the tenant is known. `enter_tenant` widens it once the key has been verified."""
        async with self._session(self._app, {"app.key_prefix": prefix}) as session:
            yield session

    @asynccontextmanager
    async def admin_session(self) -> AsyncIterator[AsyncSession]:
        """A session of the operator over all tenants. Whatever it changes must be audited."""
        async with self._session(self._admin, {}) as session:
            yield session

    @asynccontextmanager
    async def _session(
        self, engine: AsyncEngine, values: Mapping[str, str], info: Mapping[str, Any] | None = None
    ) -> AsyncIterator[AsyncSession]:
        values, more = {**self._values, **values}, {TOLD: self._told, **(info or {})}
        async with _session(engine, values, more, self._answer_s, mends=self._mends) as session:
            yield session

    async def ping(self) -> None:
        """Raises what the driver raises when the database does not answer, and ReadOnlyError."""
        async with self._app.connect() as connection:
            if await connection.scalar(_IS_READ_ONLY):
                raise ReadOnlyError("the database is read-only, or a standby")

    async def close(self) -> None:
        """Close every connection, those in use once they are given back."""
        await _close(self._app)
        await _close(self._admin)


class ReadOnlyError(Exception):
    """Nothing can be written into the database now."""


_IS_READ_ONLY = text("select current_setting('transaction_read_only')::boolean")
"""True of a hot standby, too."""


async def is_read_only(session: AsyncSession) -> bool:
    """Whether this transaction may not write. What only notes that something was used asks before:
    who reads is served all the same."""
    return bool(await session.scalar(_IS_READ_ONLY))


async def enter_tenant(session: AsyncSession, tenant_id: str) -> None:
    """Give this transaction, from here on, the tenant that its key belongs to."""
    session.info[TENANT] = tenant_id
    await session.execute(_SET, {"name": "app.tenant", "value": tenant_id})


async def in_slices(
    session: AsyncSession,
    query: Executable,
    values: Mapping[str, Any] | None = None,
    *,
    rows: int = _SLICE_ROWS,
) -> AsyncIterator[Any]:
    """The rows of a query that may have many: as the server hands them out, so that between slices
    of `rows` whoever else the event loop serves has a turn."""
    found = await session.stream(query, values, execution_options={"yield_per": rows})
    async for some in found.partitions():
        for row in some:
            yield row


def plain_reason(error: Exception) -> str:
    """The first line of what went wrong, without the statement, fit to be stored itself."""
    cause = getattr(error, "orig", None) or error
    line = next(iter(str(cause).strip().splitlines()), type(error).__name__)
    return brief(line, 500)


_SET = text("select set_config(:name, :value, true)")


@functools.cache
def _set_many(names: tuple[str, ...]) -> TextClause:
    """Sets them all for one transaction, by one statement."""
    calls = [f"set_config('{name}', :value{at}, true)" for at, name in enumerate(names)]
    return text(f"select {', '.join(calls)}")


def _engine(url: URL, connections: int, answer_s: float) -> AsyncEngine:
    """What is taken from the pool may take `answer_s` for an answer; what lies there is asked
    first, and has less."""
    engine = create_async_engine(
        url,
        pool_size=-(-connections // 2),  # kept open; the others are closed when they are given back
        max_overflow=connections // 2,
        pool_timeout=10,
        pool_pre_ping=True,
        hide_parameters=True,  # else errors carry tenants' data into the log
        connect_args={"async_creator_fn": db_link.connect},
    )

    def taken(_: Any, record: ConnectionPoolEntry, __: Any) -> None:
        _bound(record, answer_s)

    def given_back(_: Any, record: ConnectionPoolEntry) -> None:
        _bound(record, db_link.PING_S)

    event.listen(engine.sync_engine, "before_cursor_execute", _mend, retval=True)
    event.listen(engine.sync_engine, "checkout", taken)
    event.listen(engine.sync_engine, "checkin", given_back)
    return engine


def _mend(
    connection: Connection, _: Any, statement: str, parameters: Any, *__: Any
) -> tuple[str, Any]:
    if connection.get_execution_options().get(_MENDS):
        parameters = mended_parameters(statement, parameters)
    return statement, parameters


def _bound(of: ManagesConnection, answer_s: float) -> None:
    link = of.driver_connection
    if link is not None:  # lost
        link.answer_s = answer_s


async def _close(engine: AsyncEngine) -> None:
    """A connection that came back after `dispose` would stay open: its pool is nobody's by then."""
    pool, until_s = engine.pool, time.monotonic() + _LAST_S
    assert isinstance(pool, QueuePool)
    while pool.checkedout() and time.monotonic() < until_s:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    await engine.dispose()


@asynccontextmanager
async def _session(
    engine: AsyncEngine,
    values: Mapping[str, str],
    info: dict[str, Any],
    answer_s: float,
    *,
    mends: bool,
) -> AsyncIterator[AsyncSession]:
    statement = _set_many(tuple(values))
    parameters = {f"value{at}": value for at, value in enumerate(values.values())}
    async with AsyncSession(
        engine, sync_session_class=WatchedSession, expire_on_commit=False, info=info
    ) as session:

        def after_begin(_: Session, __: SessionTransaction, connection: Connection) -> None:
            # Local to the transaction: a pooled connection never carries it to the next tenant.
            if values:
                connection.execute(statement, parameters)
            connection.execution_options(**{_MENDS: mends})
            _bound(connection.connection, answer_s)

        event.listen(session.sync_session, "after_begin", after_begin)
        watch(session)
        async with session.begin():
            yield session
