"""Queries over what tenants choose for themselves and what is kept of their requests. Which rows
they touch is the session's matter; writing contents is the keeper's (`receipts.keeper`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock
from tenora_platform.receipts import stored_repository
from tenora_platform.receipts.tables import KeptContentsRow, TenantSettingsRow

_SHORTEN = text(
    "update kept_contents set expires_at = created_at + :days * interval '1 day'"
    " where expires_at > created_at + :days * interval '1 day'"
)


async def lock_settings(session: AsyncSession, tenant_id: str) -> None:
    """Nobody else changes the tenant's settings until the transaction ends. By name: there may be
    no row yet."""
    await lock(session, f"tenant_settings:{tenant_id}")


async def settings_of(session: AsyncSession, tenant_id: str) -> TenantSettingsRow | None:
    return await session.get(TenantSettingsRow, tenant_id)


async def choose(session: AsyncSession, tenant_id: str, chosen: Mapping[str, Any]) -> None:
    """Columns of its settings. What is kept or stored longer than they say now, is for so long."""
    values = {**chosen, "updated_at": func.now()}
    statement = insert(TenantSettingsRow).values(tenant_id=tenant_id, **values)
    await session.execute(
        statement.on_conflict_do_update(index_elements=[TenantSettingsRow.tenant_id], set_=values)
    )
    if chosen.get("keep_contents_days") is not None:
        await session.execute(_SHORTEN, {"days": chosen["keep_contents_days"]})
    if chosen.get("stored_response_days") is not None:
        await stored_repository.shorten(session, chosen["stored_response_days"])


async def kept(session: AsyncSession, request_id: str) -> KeptContentsRow | None:
    """None, too, once its time has passed."""
    query = select(KeptContentsRow).where(
        KeptContentsRow.request_id == request_id, KeptContentsRow.expires_at > datetime.now(UTC)
    )
    found: KeptContentsRow | None = await session.scalar(query)
    return found


async def forget_all(session: AsyncSession, tenant_id: str) -> int:
    """How many there were."""
    return await _deleted(session, KeptContentsRow.tenant_id == tenant_id)


async def forget(session: AsyncSession, request_id: str) -> bool:
    """Whether there was one."""
    return bool(await _deleted(session, KeptContentsRow.request_id == request_id))


async def sweep(session: AsyncSession, limit: int) -> int:
    """Some of those whose time has passed; how many."""
    key = (KeptContentsRow.tenant_id, KeptContentsRow.request_id)
    over = select(*key).where(KeptContentsRow.expires_at <= func.now()).limit(limit)
    return await _deleted(session, tuple_(*key).in_(over))


async def _deleted(session: AsyncSession, condition: ColumnElement[bool]) -> int:
    statement = delete(KeptContentsRow).where(condition)
    result = await session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(result, CursorResult)
    return result.rowcount
