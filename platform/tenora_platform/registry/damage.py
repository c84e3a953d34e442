"""Versions whose content in the object store is damaged or missing: who meets one writes it down
with its version, its tenant is told, and the operator is warned until it is whole again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Collection
from datetime import UTC, datetime

import structlog
from msgspec.structs import replace
from obstore.exceptions import BaseError
from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import DamagedAdapterError, UnavailableError
from tenora_platform.events import repository as events
from tenora_platform.registry.repository import SERVABLE
from tenora_platform.registry.resolver import ResolvedModel
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow
from tenora_platform.state import AppState

COUNT_EVERY_S = 15.0
TOLD_EVERY_S = 30.0
"""A process writes of one version no more often than this, however many ask for it."""
TOLD_MAX = 10_000
_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def told(state: AppState, resolved: ResolvedModel) -> AsyncGenerator[None]:
    """Around a request of the version: that its content is damaged is written down. What another
    store lacks is not: raises UnavailableError."""
    try:
        yield
    except DamagedAdapterError as error:
        if not await _is_stores(state):
            raise UnavailableError(
                "The object store is not that of the platform's database at the moment. The "
                "operator is told.",
                code="adapter_unavailable",
                retry_after_ms=5000,
            ) from error
        if resolved.adapter is not None:
            await _tell(state, resolved.adapter.version_id)
        raise


async def _is_stores(state: AppState) -> bool:
    """Whether what is not in the store is missing indeed; not where that cannot be asked."""
    try:
        return await state.store.agreed_lately()
    except (SQLAlchemyError, BaseError, OSError) as error:
        _log.warning("damage not written", reason=type(error).__name__)
        return False


async def _tell(state: AppState, version_id: str) -> None:
    known, now_s = state.damage_told, time.monotonic()
    if now_s - known.get(version_id, -TOLD_EVERY_S) < TOLD_EVERY_S:
        return
    if len(known) >= TOLD_MAX:
        known.clear()
    known[version_id] = now_s
    try:
        async with state.db.admin_session() as session:
            await mark(session, AdapterVersionRow.id == version_id)
    except SQLAlchemyError as error:  # no request fails by it
        known.pop(version_id, None)
        _log.warning("damage not written", version=version_id, reason=type(error).__name__)


async def mark(session: AsyncSession, which: ColumnElement[bool]) -> list[str]:
    """These versions serve no more until their content is whole; the ids of those of which that was
    not known."""
    now = datetime.now(UTC)
    statement = (
        update(AdapterVersionRow)
        .where(which, AdapterVersionRow.damaged_at.is_(None))
        .where(AdapterVersionRow.state.in_(SERVABLE))
        .values(damaged_at=now)
        .returning(AdapterVersionRow.id)
    )
    found = list(await session.scalars(statement))
    query = (
        select(AdapterVersionRow, AdapterRow.name)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(AdapterVersionRow.id.in_(found))
    )
    for row, name in await session.execute(query):
        _log.error("an adapter's stored content is damaged", version=row.id, digest=row.digest)
        await events.add(
            session,
            tenant_id=row.tenant_id,
            type="adapter.damaged",
            once=f"{row.id} {now.isoformat()}",
            data={"adapter": name, "version": row.number, "id": row.id, "digest": row.digest},
        )
    return found


def of_contents(digests: Collection[str | None]) -> ColumnElement[bool]:
    """Versions that have one of these contents. A draft layer is none: without it they serve."""
    return AdapterVersionRow.digest.in_(digests)


async def unmark(session: AsyncSession, which: ColumnElement[bool]) -> list[str]:
    """The content of these versions is whole again."""
    statement = (
        update(AdapterVersionRow)
        .where(which, AdapterVersionRow.damaged_at.is_not(None))
        .values(damaged_at=None)
        .returning(AdapterVersionRow.id)
    )
    return list(await session.scalars(statement))


async def keep_counted(state: AppState) -> None:
    """Tell for ever how many versions cannot be served; cancel it to stop."""
    version = AdapterVersionRow
    query = select(func.count()).where(version.damaged_at.is_not(None), version.state.in_(SERVABLE))
    while True:
        async with state.db.admin_session() as session:
            count = int(await session.scalar(query) or 0)
        if state.store.told is not None:
            state.store.told = replace(state.store.told, damaged=count)
        await asyncio.sleep(COUNT_EVERY_S)
