"""Room for weights on their way in: a row that counts as stored from before their first byte until
they are a version or have failed, and that says whose the bytes under `staging/` are meanwhile. It
is renewed while they come, so that one whose process died is soon nobody's. Knows no bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningDelete

from tenora_platform.auth import TenantContext
from tenora_platform.db import Database
from tenora_platform.errors import ConflictError
from tenora_platform.ids import new_id
from tenora_platform.locks import lock
from tenora_platform.outages import log_failure
from tenora_platform.registry.quota import Room, storage_left
from tenora_platform.registry.tables import UploadRow

RECEIVING = "receiving"
LEASE = timedelta(minutes=3)
RENEW_S = 45.0
_log = structlog.get_logger(__name__)


class Reservations:
    """One tenant's."""

    def __init__(self, db: Database, tenant: TenantContext) -> None:
        self._db = db
        self._tenant = tenant

    @contextlib.asynccontextmanager
    async def receiving(self, room: Room, declared_bytes: int | None) -> AsyncIterator[Reserved]:
        """Room for a body of so many bytes (None: nobody says how many), as far as there is any
        by now. What is left of it when the block ends is given back."""
        most = room.bytes if declared_bytes is None else min(declared_bytes, room.bytes)
        version_id, most = await self._take(most)
        renewing = asyncio.create_task(self._renew(version_id))
        try:
            yield Reserved(version_id, Room(most, room.refusal))
        finally:
            renewing.cancel()
            await asyncio.shield(self._drop(version_id))

    async def _take(self, most: int) -> tuple[str, int]:
        version_id = new_id("adv")
        async with self._db.tenant_session(self._tenant.tenant_id) as session:
            # Two API processes would both find the last bytes free.
            await lock(session, f"registry:{self._tenant.tenant_id}")
            left = await storage_left(session, self._tenant)
            most = most if left is None else min(most, left)
            row = UploadRow(
                id=version_id,
                tenant_id=self._tenant.tenant_id,
                status=RECEIVING,
                bytes=most,
                created_at=func.now(),
                expires_at=func.now() + LEASE,  # by the clock that ends it, too
            )
            session.add(row)
        return version_id, most

    async def _renew(self, version_id: str) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                async with self._db.tenant_session(self._tenant.tenant_id) as session:
                    await session.execute(
                        update(UploadRow)
                        .where(UploadRow.id == version_id, UploadRow.status == RECEIVING)
                        .values(expires_at=func.now() + LEASE)
                    )
            except Exception as error:  # the database is away; the next time is soon
                log_failure(
                    _log, "storage reservation of an upload not renewed", error, retry_s=RENEW_S
                )

    async def _drop(self, version_id: str) -> None:
        async with self._db.tenant_session(self._tenant.tenant_id) as session:
            await session.execute(_ended(version_id))


class Reserved:
    """The id that the version will have, and the room there is for its weights."""

    def __init__(self, version_id: str, room: Room) -> None:
        self.version_id = version_id
        self.room = room


def _ended(version_id: str) -> ReturningDelete[tuple[str]]:
    return (
        delete(UploadRow)
        .where(UploadRow.id == version_id, UploadRow.status == RECEIVING)
        .returning(UploadRow.id)
    )


async def end_reservation(session: AsyncSession, version_id: str) -> None:
    """In the transaction that makes the version. Raises ConflictError if the time ran out, and
    with it the claim to what lies under `staging/`."""
    if (await session.scalar(_ended(version_id))) is None:
        raise ConflictError(
            "The server paused this upload for too long and released its reserved space. "
            "Send it again."
        )


async def lapsed(session: AsyncSession, limit: int) -> Sequence[str]:
    """End what nobody renewed; the ids. For the operator's session."""
    due = (
        select(UploadRow.id)
        .where(UploadRow.status == RECEIVING, UploadRow.expires_at <= func.now())
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    )
    ended = delete(UploadRow).where(UploadRow.id.in_(due)).returning(UploadRow.id)
    return (await session.scalars(ended)).all()
