"""Ends what has had its time of rejected calls, and what is more than a tenant may have of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import structlog

from tenora_platform.db import Database
from tenora_platform.rejections import repository

KEPT_MAX = 10_000
"""Rows of one tenant, the newest."""
EVERY_S = 300.0
AT_ONCE = 1000
_log = structlog.get_logger(__name__)


async def keep_swept(db: Database, days: int) -> None:
    """Works for ever, at once and then every five minutes; several of them do no harm."""
    while True:
        await sweep(db, days)
        await asyncio.sleep(EVERY_S)


async def sweep(db: Database, days: int, now: datetime | None = None) -> None:
    now = now or datetime.now(UTC)
    while await _swept(db, before=now - timedelta(days=days)):
        pass
    async with db.admin_session() as session:
        tenants = await repository.tenants_since(session, now - timedelta(seconds=3 * EVERY_S))
    for tenant_id in tenants:
        async with db.admin_session() as session:
            first = await repository.oldest_kept(session, tenant_id, KEPT_MAX)
        while first is not None and await _swept(db, of=(tenant_id, first)):
            pass


async def _swept(
    db: Database, before: datetime | None = None, of: tuple[str, str] | None = None
) -> bool:
    """In small transactions; whether there may be more."""
    async with db.admin_session() as session:
        gone = await repository.sweep(session, AT_ONCE, before=before, of=of)
    if gone:
        _log.info("rejected calls forgotten", rows=gone)
    return gone == AT_ONCE
