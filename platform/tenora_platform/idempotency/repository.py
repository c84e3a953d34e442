"""Queries of idempotency keys. Which rows they may touch is the session's matter."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import CursorResult, Interval, delete, func, select, type_coerce, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.idempotency.tables import IdempotencyRow

KEPT = timedelta(hours=24)


class First(NamedTuple):
    """`age` by the database's clock, which has begun it too: no process's own is compared."""

    row: IdempotencyRow
    age: timedelta


async def begin(
    session: AsyncSession, caller_id: str, key: str, tenant_id: str | None, target: str
) -> First | None:
    """None: the key is this request's now. Else the request that had it first."""
    fresh = {"tenant_id": tenant_id, "target": target}
    forgotten = {"body_sha256": None, "answer": None, "began_at": func.now()}
    statement = (
        insert(IdempotencyRow)
        .values(caller_id=caller_id, key=key, **fresh)
        .on_conflict_do_update(
            index_elements=[IdempotencyRow.caller_id, IdempotencyRow.key],
            set_={**fresh, **forgotten},
            where=IdempotencyRow.began_at < func.now() - KEPT,
        )
        .returning(IdempotencyRow.key)
    )
    if await session.scalar(statement) is not None:
        return None
    found = await session.execute(
        select(IdempotencyRow, type_coerce(func.now() - IdempotencyRow.began_at, Interval)).where(
            IdempotencyRow.caller_id == caller_id, IdempotencyRow.key == key
        )
    )
    row = found.one_or_none()
    return None if row is None else First(row[0], row[1])


async def finish(
    session: AsyncSession, caller_id: str, key: str, body_sha256: str, answer: bytes
) -> None:
    await session.execute(
        update(IdempotencyRow)
        .where(IdempotencyRow.caller_id == caller_id, IdempotencyRow.key == key)
        .values(body_sha256=body_sha256, answer=answer)
    )


async def give_up(session: AsyncSession, caller_id: str, key: str, age: timedelta) -> None:
    """The first request is over, and nobody knows with what result: as if it had begun so long ago.
    It is forgotten as much earlier."""
    await session.execute(
        update(IdempotencyRow)
        .where(IdempotencyRow.caller_id == caller_id, IdempotencyRow.key == key)
        .values(began_at=func.now() - age)
    )


async def forget(session: AsyncSession, caller_id: str, key: str) -> None:
    await session.execute(
        delete(IdempotencyRow).where(
            IdempotencyRow.caller_id == caller_id, IdempotencyRow.key == key
        )
    )


async def sweep(session: AsyncSession) -> int:
    """Remove what need not be remembered any more; how many rows that was."""
    result = await session.execute(
        delete(IdempotencyRow).where(IdempotencyRow.began_at < func.now() - KEPT)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
