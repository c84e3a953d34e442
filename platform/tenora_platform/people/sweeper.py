"""Forgets sessions that are over and invitations that ended long ago."""

from __future__ import annotations

import asyncio

from tenora_platform.db import Database
from tenora_platform.people import repository
from tenora_platform.people.sessions import Sessions

EVERY_S = 3600.0


async def keep_swept(db: Database, sessions: Sessions) -> None:
    """Works for ever, at once and then every hour; several of them do no harm."""
    while True:
        async with db.admin_session() as session:
            await sessions.sweep(session)
            await repository.sweep_invitations(session)
        await asyncio.sleep(EVERY_S)
