"""Advisory locks of one installation, held until the transaction ends. PostgreSQL keeps them by
database, so the schema is part of what they are called. It does not know what they guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession

# In `public` as before there were installations: two versions exclude each other during an upgrade.
_KEY = """hashtextextended(
  case current_schema() when 'public' then '' else current_schema() || '/' end || :name, 0)"""
_LOCK = text(f"select pg_advisory_xact_lock({_KEY})")
_LOCK_SHARED = text(f"select pg_advisory_xact_lock_shared({_KEY})")
_TRY_LOCK = text(f"select pg_try_advisory_xact_lock({_KEY})")
_TRY_LOCK_SHARED = text(f"select pg_try_advisory_xact_lock_shared({_KEY})")
_LOCK_ALL_SHARED = text(
    f"select pg_advisory_xact_lock_shared({_KEY.replace(':name', 'name')}) from ("
    "select name from unnest(cast(:names as text[])) with ordinality as each (name, place) "
    "order by place) as named"
)
_NAMED_KEY = _KEY.replace(":name", "%(name)s")


async def lock(session: AsyncSession, name: str) -> None:
    """Serialise what names the same thing."""
    await session.execute(_LOCK, {"name": name})


async def lock_shared(session: AsyncSession, name: str) -> None:
    """Many may hold it at once, beside nobody who has it by `lock`."""
    await session.execute(_LOCK_SHARED, {"name": name})


async def lock_all_shared(session: AsyncSession, names: Sequence[str]) -> None:
    """As `lock_shared`, one after the other."""
    await session.execute(_LOCK_ALL_SHARED, {"names": list(names)})


async def try_lock(session: AsyncSession, name: str) -> bool:
    """Whether it was free, and is ours now."""
    return bool(await session.scalar(_TRY_LOCK, {"name": name}))


async def try_lock_shared(session: AsyncSession, name: str) -> bool:
    """Whether nobody has it by `lock` or waits for it so, and we have it now beside others."""
    return bool(await session.scalar(_TRY_LOCK_SHARED, {"name": name}))


def hold_shared(connection: Connection, name: str) -> None:
    """As `lock_shared`, within what a session does."""
    connection.execute(_LOCK_SHARED, {"name": name})


def hold(link: psycopg.Connection[Any], name: str) -> None:
    """As `lock`, for a connection without SQLAlchemy."""
    link.execute(f"select pg_advisory_xact_lock({_NAMED_KEY})".encode(), {"name": name})


def try_hold(link: psycopg.Connection[Any], name: str) -> bool:
    """As `try_lock`, for a connection without SQLAlchemy."""
    query = f"select pg_try_advisory_xact_lock({_NAMED_KEY})".encode()
    row = link.execute(query, {"name": name}).fetchone()
    return row is not None and bool(row[0])
