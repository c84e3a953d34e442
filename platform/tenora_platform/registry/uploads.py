"""Resumable uploads of large weights: created with their size, which counts as stored from then on,
filled part by part in any order, completed in the order the client names, used once by
POST /v1/adapters. Knows parts, not adapters."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import TenantContext
from tenora_platform.counted import refuse_more
from tenora_platform.errors import (
    BadRequestError,
    ConflictError,
    NotFoundError,
    QuotaExceededError,
    TooLargeError,
)
from tenora_platform.ids import new_id
from tenora_platform.registry import repository
from tenora_platform.registry.incoming import IncomingObject, ReceivedWeights, incoming
from tenora_platform.registry.quota import Room, check_storage, storage_exceeded, storage_left
from tenora_platform.registry.reservations import RECEIVING, Reservations
from tenora_platform.registry.schemas import (
    OpenUpload,
    Upload,
    UploadComplete,
    UploadCreate,
    UploadPart,
)
from tenora_platform.registry.storage import (
    AdapterStorage,
    part_key,
    staged_draft_layer,
    staged_weights,
)
from tenora_platform.registry.tables import UploadPartRow, UploadRow
from tenora_platform.state import AppState

PART_BYTES_MAX = 64 * 1024 * 1024
PARTS_MAX = 10_000
OPEN_UPLOADS_MAX = 16  # of one tenant
LIFETIME = timedelta(hours=24)


class Uploads:
    """One tenant's uploads."""

    def __init__(self, state: AppState, tenant: TenantContext) -> None:
        self._state = state
        self._tenant = tenant
        self._storage = AdapterStorage(
            state.objects,
            reserve_bytes=state.settings.disk_reserve,
            deleting=state.store.deleting,
        )

    def _session(self) -> AbstractAsyncContextManager[AsyncSession]:
        return self._state.db.tenant_session(self._tenant.tenant_id)

    def bytes_max(self) -> int:
        """The largest file the plan and the server take."""
        plan_max = self._tenant.plan.adapter_bytes
        server_max = self._state.settings.max_upload
        return server_max if plan_max is None else min(plan_max, server_max)

    async def room(self) -> Room:
        """For weights that come now: what the plan has left, and no more than the server takes."""
        async with self._session() as session:
            left = await storage_left(session, self._tenant)
        return self._room(left, "weights")

    def _room(self, left: int | None, param: str) -> Room:
        server_max = self._state.settings.max_upload
        if left is None or left >= server_max:
            return Room(server_max, _too_large(param, server_max))
        return Room(left, storage_exceeded(self._tenant, left, None, param=param))

    def require_disk(self, more_bytes: int) -> None:
        """Raises StorageFullError where the store has no such room."""
        self._storage.require_room(more_bytes)

    @asynccontextmanager
    async def weights(
        self, room: Room, declared_bytes: int | None
    ) -> AsyncIterator[tuple[str, IncomingObject]]:
        """To receive the weights of a version, in a body of so many bytes; the id that it will
        have. They count as stored meanwhile."""
        reservations = Reservations(self._state.db, self._tenant)
        async with reservations.receiving(room, declared_bytes) as reserved:
            staging = f"staging/{reserved.version_id}"
            try:
                weights_key = staged_weights(staging)
                async with self._incoming(weights_key, reserved.room) as file:
                    yield reserved.version_id, file
            except BaseException:
                await asyncio.shield(self._storage.discard_staged(staging))
                raise

    def draft_layer(
        self, version_id: str, room: Room
    ) -> AbstractAsyncContextManager[IncomingObject]:
        """To receive the layer that comes with the weights of that version, whose room is its."""
        key = staged_draft_layer(f"staging/{version_id}")
        return self._incoming(key, self._room(room.bytes, "draft_layer"))

    def part(
        self, upload_id: str, part_id: str, room: Room
    ) -> AbstractAsyncContextManager[IncomingObject]:
        """To receive the part that will have this id."""
        return self._incoming(part_key(upload_id, part_id), room)

    def _incoming(self, key: str, room: Room) -> AbstractAsyncContextManager[IncomingObject]:
        return incoming(self._storage, key, room, self._state.upload_pace)

    async def create(self, body: UploadCreate) -> Upload:
        """Raises TooLargeError, QuotaExceededError, StorageFullError."""
        if body.bytes > self.bytes_max():
            raise TooLargeError(
                f"An upload can have at most {self.bytes_max()} bytes, not {body.bytes}.",
                param="bytes",
            )
        self._storage.require_room(body.bytes)
        tenant_id, now = self._tenant.tenant_id, datetime.now(UTC)
        async with self._session() as session:
            await refuse_more(
                session,
                "registry",  # as whoever counts the bytes
                tenant_id,
                repository.open_uploads(tenant_id, now),
                OPEN_UPLOADS_MAX,
                lambda: QuotaExceededError(
                    f"{OPEN_UPLOADS_MAX} uploads are open, which is the maximum. Complete "
                    "or cancel one first.",
                    code="upload_limit_reached",
                ),
            )
            await check_storage(session, self._tenant, body.bytes, param="bytes")
            row = UploadRow(
                id=new_id("upload"),
                tenant_id=tenant_id,
                status="pending",
                bytes=body.bytes,
                sha256=body.sha256,
                created_at=now,
                expires_at=now + LIFETIME,
            )
            session.add(row)
        return _view(row, [])

    async def open(self) -> list[OpenUpload]:
        """Those that may go on, the newest first."""
        now = datetime.now(UTC)
        async with self._session() as session:
            found = await repository.uploads_going_on(session, self._tenant.tenant_id, now)
        return [
            OpenUpload.model_validate(
                {
                    "id": row.id,
                    "status": row.status,
                    "bytes": row.bytes,
                    "received_bytes": received,
                    "parts_received": parts,
                    "part_bytes_max": PART_BYTES_MAX,
                    "created_at": row.created_at,
                    "expires_at": row.expires_at,
                }
            )
            for row, received, parts in found
        ]

    async def get(self, upload_id: str) -> Upload:
        async with self._session() as session:
            row = await self._require(session, upload_id)
            return _view(row, await repository.parts_of(session, upload_id))

    async def part_room(self, upload_id: str) -> Room:
        """For one part. Raises NotFoundError, ConflictError."""
        async with self._session() as session:
            upload = await self._require_pending(session, upload_id)
            most = min(PART_BYTES_MAX, upload.bytes)
        return Room(most, _too_large("data", most))

    async def add_part(
        self, upload_id: str, part_id: str, data: IncomingObject, expected_sha256: str | None
    ) -> UploadPart:
        """Keep one part durably; the same bytes sent again are the part that came first. Raises
        ConflictError unless the upload is pending, BadRequestError when the checksum differs,
        TooLargeError beyond the declared size."""
        if data.bytes == 0:
            raise BadRequestError("The part is empty.", param="data")
        await data.flush()
        if expected_sha256 is not None and expected_sha256 != data.sha256:
            raise BadRequestError(
                f"The SHA-256 of the received part is {data.sha256}, not {expected_sha256} "
                "as declared. Send the part again.",
                param="sha256",
                code="checksum_mismatch",
            )
        async with self._session() as session:
            if known := await self._make_room(session, upload_id, data):
                return _part_view(known)
        try:
            await data.finish()
            async with self._session() as session:
                known = await self._make_room(session, upload_id, data)
                row = UploadPartRow(
                    id=part_id,
                    tenant_id=self._tenant.tenant_id,
                    upload_id=upload_id,
                    bytes=data.bytes,
                    sha256=data.sha256,
                    created_at=datetime.now(UTC),
                )
                if known is None:
                    session.add(row)
        except BaseException:
            await self._storage.discard([data.key])
            raise
        if known is not None:
            await self._storage.discard([data.key])
        return _part_view(known or row)

    async def _make_room(
        self, session: AsyncSession, upload_id: str, part: IncomingObject
    ) -> UploadPartRow | None:
        """The part with the same bytes, if it came before; else raises ConflictError or
        TooLargeError unless the upload takes this one too."""
        upload = await self._require_pending(session, upload_id)
        parts = await repository.parts_of(session, upload_id)
        for known in parts:
            if (known.sha256, known.bytes) == (part.sha256, part.bytes):
                return known
        received = sum(known.bytes for known in parts)
        if received + part.bytes > upload.bytes:
            raise TooLargeError(
                f"The upload was declared with {upload.bytes} bytes; {received} bytes have "
                f"arrived, and this part of {part.bytes} bytes would exceed that.",
                param="data",
            )
        if len(parts) >= PARTS_MAX:
            raise TooLargeError(f"An upload can have at most {PARTS_MAX} parts.", param="data")
        return None

    async def complete(self, upload_id: str, body: UploadComplete) -> Upload:
        """Fix the order of the parts and check size and checksum of the whole. The checksum is
        computed between two transactions: nobody waits for a lock meanwhile."""
        async with self._session() as session:
            row = await self._require_pending(session, upload_id)
            ordered = _in_order(row, await repository.parts_of(session, upload_id), body.part_ids)
        sha256 = await self._sha256(upload_id, ordered)
        for expected in (row.sha256, body.sha256):
            if expected is not None and expected != sha256:
                raise BadRequestError(
                    f"The SHA-256 of the file is {sha256}, not {expected} as declared.",
                    param="sha256",
                    code="checksum_mismatch",
                )
        async with self._session() as session:
            row = await self._require_pending(session, upload_id)
            row.part_ids = body.part_ids
            row.sha256 = sha256
            row.status = "completed"
            unused = await repository.drop_parts(session, upload_id, keep=body.part_ids)
        await self._storage.discard([part_key(upload_id, part) for part in unused])
        return _view(row, ordered)

    async def _sha256(self, upload_id: str, ordered: Sequence[UploadPartRow]) -> str:
        """Of the whole file. Raises ConflictError if a part has gone, with the upload or alone."""
        if len(ordered) == 1:
            return ordered[0].sha256  # hashed when it came
        digest = hashlib.sha256()
        try:
            async for chunk in self._storage.read(
                [part_key(upload_id, part.id) for part in ordered]
            ):
                await asyncio.to_thread(digest.update, chunk)
        except FileNotFoundError as error:
            async with self._session() as session:
                await self._require_pending(session, upload_id)
            raise ConflictError(
                "A part of the upload has been lost. Start the upload again."
            ) from error
        return digest.hexdigest()

    async def cancel(self, upload_id: str) -> Upload:
        """Give the parts up. Raises ConflictError if the upload has been used."""
        async with self._session() as session:
            row = await self._require(session, upload_id, for_update=True)
            if row.status not in ("pending", "completed", "cancelled"):
                raise ConflictError(f"The upload is {row.status} and can no longer be cancelled.")
            row.status = "cancelled"
            parts = await repository.parts_of(session, upload_id)
        await self._storage.discard([part_key(upload_id, part.id) for part in parts])
        return _view(row, parts)

    async def completed(self, upload_id: str) -> ReceivedWeights:
        """The whole file, for a version that claims it. Raises NotFoundError, ConflictError (param
        "upload_id")."""
        async with self._session() as session:
            row = await self._require(session, upload_id)
        if row.status != "completed" or row.sha256 is None:
            raise ConflictError(
                f"The upload is {row.status}, not completed. Complete it first.", param="upload_id"
            )
        return ReceivedWeights(row.bytes, row.sha256, upload_id=upload_id)

    async def _require(
        self, session: AsyncSession, upload_id: str, *, for_update: bool = False
    ) -> UploadRow:
        query = select(UploadRow).where(
            UploadRow.tenant_id == self._tenant.tenant_id,
            UploadRow.id == upload_id,
            UploadRow.status != RECEIVING,
        )
        row: UploadRow | None = await session.scalar(
            query.with_for_update(key_share=True) if for_update else query
        )
        if row is None:
            raise NotFoundError(f"There is no upload {upload_id[:80]!r}.", param="upload_id")
        return row

    async def _require_pending(self, session: AsyncSession, upload_id: str) -> UploadRow:
        row = await self._require(session, upload_id, for_update=True)
        if row.status != "pending" or row.expires_at <= datetime.now(UTC):
            status = row.status if row.status != "pending" else "expired"
            raise ConflictError(
                f"The upload is {status} and accepts no more parts. Start a new upload."
            )
        return row


def _in_order(
    upload: UploadRow, parts: Sequence[UploadPartRow], part_ids: Sequence[str]
) -> list[UploadPartRow]:
    """Raises BadRequestError unless these parts are the whole file."""
    known = {part.id: part for part in parts}
    if not known.keys() >= set(part_ids):
        raise BadRequestError("part_ids must list parts of this upload.", param="part_ids")
    ordered = [known[part_id] for part_id in part_ids]
    total = sum(part.bytes for part in ordered)
    if total != upload.bytes:
        raise BadRequestError(
            f"The parts have {total} bytes in total, but {upload.bytes} were declared.",
            param="part_ids",
        )
    return ordered


def _too_large(what: str, most: int) -> TooLargeError:
    return TooLargeError(f"{what} is larger than allowed ({most} bytes).", param=what)


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
