"""Ends what has had its time: kept contents, stored responses, and the private parts of keys that
sign no more."""

from __future__ import annotations

import asyncio

import structlog

from tenora_platform.db import Database
from tenora_platform.receipts import contents_repository, stored_repository
from tenora_platform.receipts.signing import forget_private

EVERY_S = 600.0
AT_ONCE = 1000
_log = structlog.get_logger(__name__)


async def keep_swept(db: Database) -> None:
    """Works for ever, at once and then every ten minutes; several of them do no harm."""
    while True:
        await sweep(db)
        await asyncio.sleep(EVERY_S)


async def sweep(db: Database) -> None:
    async with db.admin_session() as session:
        await forget_private(session)
    for what, some in (
        ("contents", contents_repository.sweep),
        ("stored responses", stored_repository.sweep),
    ):
        gone = AT_ONCE
        while gone == AT_ONCE:  # small transactions
            async with db.admin_session() as session:
                gone = await some(session, AT_ONCE)
            if gone:
                _log.info(f"expired {what} deleted", requests=gone)
