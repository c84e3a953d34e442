"""Queries of idempotency keys. Which rows they may touch is the session's matter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import CursorResult, delete, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.idempotency.tables import IdempotencyRow

KEPT = timedelta(hours=24)


async def begin(
    session: AsyncSession, caller_id: str, key: str, tenant_id: str | None, target: str
) -> IdempotencyRow | None:
    """None: the key is this request's now. Else the row of the request that had it first."""
    fresh = {"tenant_id": tenant_id, "target": target}
    forgotten = {"body_sha256": None, "answer": None, "began_at": func.now()}
    statement = (
        insert(IdempotencyRow)
        .values(caller_id=caller_id, key=key, **fresh)
        .on_conflict_do_update(
            index_elements=[IdempotencyRow.caller_id, IdempotencyRow.key],
            set_={**fresh, **forgotten},
            where=IdempotencyRow.began_at < datetime.now(UTC) - KEPT,
        )
        .returning(IdempotencyRow.key)
    )
    if await session.scalar(statement) is not None:
        return None
    return await session.get(IdempotencyRow, (caller_id, key))


async def finish(
    session: AsyncSession, caller_id: str, key: str, body_sha256: str, answer: bytes
) -> None:
    await session.execute(
        update(IdempotencyRow)
        .where(IdempotencyRow.caller_id == caller_id, IdempotencyRow.key == key)
        .values(body_sha256=body_sha256, answer=answer)
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
        delete(IdempotencyRow).where(IdempotencyRow.began_at < datetime.now(UTC) - KEPT)
    )
    assert isinstance(result, CursorResult)
    return result.rowcount
