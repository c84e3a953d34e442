"""Resumable uploads of large weights: created with their size, filled part by part in any order,
completed in the order the client names, used once by POST /v1/adapters. Knows parts, not adapters.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    QuotaExceededError,
    TooLargeError,
)
from tenora_platform.ids import new_id
from tenora_platform.registry.schemas import Upload, UploadComplete, UploadCreate, UploadPart
from tenora_platform.registry.spool import Spool, SpoolFile
from tenora_platform.registry.storage import AdapterStorage, part_key
from tenora_platform.registry.tables import UploadPartRow, UploadRow
from tenora_platform.state import AppState

PART_BYTES_MAX = 64 * 1024 * 1024
PARTS_MAX = 10_000
OPEN_UPLOADS_MAX = 16  # of one tenant
LIFETIME = timedelta(hours=24)


@dataclass(frozen=True)
class CompletedUpload:
    """The whole file, to be used within the block that gave it."""

    path: Path
    bytes: int
    sha256: str


class Uploads:
    """One tenant's uploads."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant
        self._storage = AdapterStorage(state.objects)
        self.spool = Spool(state.settings.data_dir / "spool")

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)

    def bytes_max(self) -> int:
        """The largest file the plan and the server take."""
        plan_max = self._tenant.plan.adapter_bytes
        server_max = self._state.settings.max_upload
        return server_max if plan_max is None else min(plan_max, server_max)

    async def create(self, body: UploadCreate) -> Upload:
        """Raises TooLargeError, QuotaExceededError."""
        if body.bytes > self.bytes_max():
            raise TooLargeError(
                f"An upload may have {self.bytes_max()} bytes at most.", param="bytes"
            )
        now = datetime.now(UTC)
        async with self._session() as session:
            open_uploads = await session.scalars(
                select(UploadRow.id).where(
                    UploadRow.status.in_(("pending", "completed")), UploadRow.expires_at > now
                )
            )
            if len(open_uploads.all()) >= OPEN_UPLOADS_MAX:
                raise QuotaExceededError(
                    f"{OPEN_UPLOADS_MAX} uploads are open; complete or cancel one first.",
                    code="upload_limit_reached",
                )
            row = UploadRow(
                id=new_id("upload"),
                tenant_id=self._tenant.tenant_id,
                status="pending",
                bytes=body.bytes,
                sha256=body.sha256,
                created_at=now,
                expires_at=now + LIFETIME,
            )
            session.add(row)
        return _view(row, [])

    async def get(self, upload_id: str) -> Upload:
        async with self._session() as session:
            row = await self._require(session, upload_id)
            return _view(row, await _parts(session, upload_id))

    async def add_part(
        self, upload_id: str, spooled: SpoolFile, expected_sha256: str | None
    ) -> UploadPart:
        """Keep one part durably. Raises ConflictError unless the upload is pending,
        BadRequestError when the checksum differs, TooLargeError beyond the declared size."""
        spooled.close()
        if spooled.bytes == 0:
            raise BadRequestError("The part is empty.", param="data")
        if expected_sha256 is not None and expected_sha256 != spooled.sha256:
            raise BadRequestError(
                f"The part's SHA-256 is {spooled.sha256}, not what was said; send it again.",
                param="sha256",
                code="checksum_mismatch",
            )
        async with self._session() as session:
            await self._require_pending(session, upload_id)
        part_id = new_id("part")
        key = part_key(upload_id, part_id)
        await self._storage.put_part(key, spooled.path)
        try:
            async with self._session() as session:
                upload = await self._require_pending(session, upload_id)
                parts = await _parts(session, upload_id)
                if sum(part.bytes for part in parts) + spooled.bytes > 2 * upload.bytes:
                    # Twice: a part may be sent again after a broken connection.
                    raise TooLargeError("The parts exceed the declared size.", param="data")
                if len(parts) >= PARTS_MAX:
                    raise TooLargeError(f"An upload has {PARTS_MAX} parts at most.", param="data")
                row = UploadPartRow(
                    id=part_id,
                    tenant_id=self._tenant.tenant_id,
                    upload_id=upload_id,
                    bytes=spooled.bytes,
                    sha256=spooled.sha256,
                    created_at=datetime.now(UTC),
                )
                session.add(row)
        except BaseException:
            await self._storage.discard_parts([key])
            raise
        return _part_view(row)

    async def complete(self, upload_id: str, body: UploadComplete) -> Upload:
        """Fix the order of the parts and check size and checksum of the whole."""
        async with self._session() as session:
            row = await self._require_pending(session, upload_id)
            known = {part.id: part for part in await _parts(session, upload_id)}
            if len(set(body.part_ids)) != len(body.part_ids) or not known.keys() >= set(
                body.part_ids
            ):
                raise BadRequestError(
                    "part_ids must name parts of this upload, each once.", param="part_ids"
                )
            ordered = [known[part_id] for part_id in body.part_ids]
            total = sum(part.bytes for part in ordered)
            if total != row.bytes:
                raise BadRequestError(
                    f"The parts have {total} bytes; {row.bytes} were declared.", param="part_ids"
                )
            sha256 = await self._sha256(upload_id, body.part_ids)
            for expected in (row.sha256, body.sha256):
                if expected is not None and expected != sha256:
                    raise BadRequestError(
                        f"The file's SHA-256 is {sha256}, not {expected}.",
                        param="sha256",
                        code="checksum_mismatch",
                    )
            for position, part in enumerate(ordered):
                part.position = position
            row.sha256 = sha256
            row.status = "completed"
            return _view(row, ordered)

    async def _sha256(self, upload_id: str, part_ids: Sequence[str]) -> str:
        with self.spool.place() as path:
            await self._storage.read_parts([part_key(upload_id, part) for part in part_ids], path)
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

    async def cancel(self, upload_id: str) -> Upload:
        """Give the parts up. Raises ConflictError if the upload has been used."""
        async with self._session() as session:
            row = await self._require(session, upload_id, for_update=True)
            if row.status not in ("pending", "completed", "cancelled"):
                raise ConflictError(f"The upload is {row.status}; it cannot be cancelled.")
            row.status = "cancelled"
            parts = await _parts(session, upload_id)
        await self._storage.discard_parts([part_key(upload_id, part.id) for part in parts])
        return _view(row, parts)

    @asynccontextmanager
    async def taken(self, upload_id: str) -> AsyncIterator[CompletedUpload]:
        """The completed file, used up if the block succeeds. Raises NotFoundError, ConflictError
        (param "upload_id")."""
        async with self._session() as session:
            row = await self._require(session, upload_id)
            parts = [part for part in await _parts(session, upload_id) if part.position is not None]
        if row.status != "completed" or row.sha256 is None:
            raise ConflictError(f"The upload is {row.status}, not completed.", param="upload_id")
        parts.sort(key=lambda part: part.position or 0)
        keys = [part_key(upload_id, part.id) for part in parts]
        with self.spool.place() as path:
            await self._storage.read_parts(keys, path)
            yield CompletedUpload(path, row.bytes, row.sha256)
        async with self._session() as session:
            await session.execute(
                update(UploadRow).where(UploadRow.id == upload_id).values(status="used")
            )
        await self._storage.discard_parts(keys)

    async def _require(
        self, session: AsyncSession, upload_id: str, *, for_update: bool = False
    ) -> UploadRow:
        query = select(UploadRow).where(
            UploadRow.tenant_id == self._tenant.tenant_id, UploadRow.id == upload_id
        )
        row: UploadRow | None = await session.scalar(
            query.with_for_update() if for_update else query
        )
        if row is None:
            raise NotFoundError(f"There is no upload {upload_id[:80]!r}.", param="upload_id")
        return row

    async def _require_pending(self, session: AsyncSession, upload_id: str) -> UploadRow:
        row = await self._require(session, upload_id, for_update=True)
        if row.status != "pending" or row.expires_at <= datetime.now(UTC):
            status = row.status if row.status != "pending" else "expired"
            raise ConflictError(f"The upload is {status}; it takes nothing more.")
        return row


async def _parts(session: AsyncSession, upload_id: str) -> Sequence[UploadPartRow]:
    query = (
        select(UploadPartRow).where(UploadPartRow.upload_id == upload_id).order_by(UploadPartRow.id)
    )
    return (await session.scalars(query)).all()


def _part_view(row: UploadPartRow) -> UploadPart:
    return UploadPart(
        id=row.id,
        upload_id=row.upload_id,
        bytes=row.bytes,
        sha256=row.sha256,
        created_at=row.created_at,
    )


def _view(row: UploadRow, parts: Sequence[UploadPartRow]) -> Upload:
    return Upload.model_validate(
        {
            "id": row.id,
            "status": row.status,
            "bytes": row.bytes,
            "sha256": row.sha256,
            "part_bytes_max": PART_BYTES_MAX,
            "parts": [_part_view(part) for part in parts],
            "created_at": row.created_at,
            "expires_at": row.expires_at,
        }
    )
