"""The database: two login roles, two engines, and sessions that cannot leave their tenant. It does
not know the tables; migrations make the schema and `bootstrap` makes the roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, MetaData, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, SessionTransaction

from tenora_platform.installation import Installation


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
    installation's schema."""

    installation: Installation
    owner: URL
    app: URL
    admin: URL


def psycopg_url(url: str) -> URL:
    """The operator's URL with the driver we use (`postgres://` and `postgresql://` both do)."""
    parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    return parsed.set(drivername="postgresql+psycopg")


class Database:
    """Opens sessions as the app role (one tenant's rows) or the admin role (operator's work)."""

    def __init__(self, urls: DatabaseUrls, *, pool_size: int = 8) -> None:
        self._app = _engine(urls.app, pool_size)
        self._admin = _engine(urls.admin, max(2, pool_size // 2))

    @asynccontextmanager
    async def tenant_session(self, tenant_id: str) -> AsyncIterator[AsyncSession]:
        """A session that sees and writes this tenant's rows only. Commits when the block ends,
        rolls back when it raises."""
        async with _session(self._app, {"app.tenant": tenant_id}) as session:
            yield session

    @asynccontextmanager
    async def key_session(self, prefix: str) -> AsyncIterator[AsyncSession]:
        """A session that sees nothing but the API keys of one prefix: for authentication, before
        the tenant is known. `enter_tenant` widens it once the key has been verified."""
        async with _session(self._app, {"app.key_prefix": prefix}) as session:
            yield session

    @asynccontextmanager
    async def admin_session(self) -> AsyncIterator[AsyncSession]:
        """A session of the operator over all tenants. Whatever it changes must be audited."""
        async with _session(self._admin, {}) as session:
            yield session

    async def ping(self) -> None:
        """Raises what the driver raises when the database does not answer."""
        async with self._app.connect() as connection:
            await connection.execute(text("select 1"))

    async def close(self) -> None:
        await self._app.dispose()
        await self._admin.dispose()


async def enter_tenant(session: AsyncSession, tenant_id: str) -> None:
    """Give this transaction, from here on, the tenant that its key belongs to."""
    await session.execute(_SET, {"name": "app.tenant", "value": tenant_id})


def plain_reason(error: Exception) -> str:
    """The first line of what went wrong, without the statement, fit to be stored itself."""
    cause = getattr(error, "orig", None) or error
    line = next(iter(str(cause).strip().splitlines()), type(error).__name__)
    return line[:500].replace("\0", "").encode(errors="replace").decode()


_SET = text("select set_config(:name, :value, true)")


def _engine(url: URL, pool_size: int) -> AsyncEngine:
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=2 * pool_size,
        pool_timeout=10,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10},
    )


@asynccontextmanager
async def _session(engine: AsyncEngine, values: dict[str, str]) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine, expire_on_commit=False) as session:

        def after_begin(_: Session, __: SessionTransaction, connection: Connection) -> None:
            # Local to the transaction: a pooled connection never carries it to the next tenant.
            for name, value in values.items():
                connection.execute(_SET, {"name": name, "value": value})

        event.listen(session.sync_session, "after_begin", after_begin)
        async with session.begin():
            yield session
