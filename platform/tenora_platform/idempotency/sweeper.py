"""Forgets answers that nobody may ask for any more."""

from __future__ import annotations

import asyncio

from tenora_platform.db import Database
from tenora_platform.idempotency import repository

EVERY_S = 3600.0


async def keep_swept(db: Database) -> None:
    """Works for ever, at once and then every hour; several of them do no harm."""
    while True:
        async with db.admin_session() as session:
            await repository.sweep(session)
        await asyncio.sleep(EVERY_S)
