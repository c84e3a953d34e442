"""Where adapters' bytes lie: uploads under `staging/` until they are checked, then the normalised
config and the weights by content digest. Knows keys and objects, not rows."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

import obstore
from obstore import Bytes
from obstore.store import LocalStore, ObjectStore

from tenora_engine.adapters.draft_format import FILE as DRAFT_FILE
from tenora_engine.adapters.identity import config_key, draft_key, weights_key
from tenora_platform.registry.disk import full_disk_named, require_room

_CHUNK_BYTES = 5 * 1024 * 1024  # the least that S3 takes as a part


def nothing_deleted() -> AbstractAsyncContextManager[bool]:
    """For a storage that is only read."""
    return nullcontext(False)


class AdapterStorage:
    """Durable before it is referred to: each method returns once the store has the bytes."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        reserve_bytes: int = 0,
        deleting: Callable[[], AbstractAsyncContextManager[bool]],
    ) -> None:
        """`deleting`: whether objects may be deleted while its block runs."""
        self._objects = objects
        self._reserve_bytes = reserve_bytes
        self._deleting = deleting

    def require_room(self, more_bytes: int) -> None:
        """Raises StorageFullError if the store is a folder whose disk has no such room."""
        if isinstance(self._objects, LocalStore) and self._objects.prefix is not None:
            require_room(Path(self._objects.prefix), more_bytes, self._reserve_bytes)

    async def _put(self, key: str, content: bytes | BinaryIO) -> None:
        """Durable when it returns; when it raises, StorageFullError for one, nothing is left."""
        self.require_room(_size(content))
        with full_disk_named():
            await obstore.put_async(self._objects, key, content)

    async def put_stream(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        """As `_put`, of what is still coming; what `pieces` raises ends it and is raised. A store
        of objects is sent parts of _CHUNK_BYTES, two at a time."""
        with full_disk_named():
            await obstore.put_async(
                self._objects, key, pieces, chunk_size=_CHUNK_BYTES, max_concurrency=2
            )

    async def stage_config(self, key: str, config: bytes) -> None:
        """Keep an upload's config until it has been checked; its weights lie there already."""
        await self._put(f"{key}/adapter_config.json", config)

    async def staged_config(self, key: str) -> bytes:
        """Raises FileNotFoundError."""
        config = await obstore.get_async(self._objects, f"{key}/adapter_config.json")
        return bytes(await config.bytes_async())

    async def read(self, keys: Sequence[str]) -> AsyncIterator[bytes]:
        """The bytes of these objects, one after the other. Raises FileNotFoundError."""
        for key in keys:
            result = await obstore.get_async(self._objects, key)
            if result.meta["size"] == 0:  # of which a folder's store reads nothing
                continue
            async for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                yield chunk

    async def fetch(self, keys: Sequence[str], target: BinaryIO) -> str:
        """Write these objects to `target`, one after the other; the SHA-256 of them all, in hex.
        Raises FileNotFoundError."""
        digest = hashlib.sha256()
        with full_disk_named():
            async for chunk in self.read(keys):
                await asyncio.to_thread(_write_all, target, chunk)
                await asyncio.to_thread(digest.update, chunk)
        return digest.hexdigest()

    async def discard_staged(self, key: str) -> None:
        parts = [f"{key}/adapter_config.json", staged_weights(key), staged_draft_layer(key)]
        await self.discard(parts)

    async def publish(self, digest: str, config: bytes, weights: BinaryIO) -> None:
        """Store checked content under its digest. The config goes last: whoever finds it finds
        the weights too."""
        weights.seek(0)
        await self._put(weights_key(digest), weights)
        await self._put(config_key(digest), config)

    async def publish_draft_layer(self, digest: str, layer: BinaryIO) -> None:
        """Store a checked layer under its own digest."""
        layer.seek(0)
        await self._put(draft_key(digest), layer)

    async def published(self, digest: str, draft_layer: str | None) -> bool:
        """All of a version: while it was published, somebody may have been withdrawing the same
        content."""
        layer = [] if draft_layer is None else [draft_key(draft_layer)]
        try:
            for key in (config_key(digest), weights_key(digest), *layer):
                await obstore.head_async(self._objects, key)
        except FileNotFoundError:
            return False
        return True

    async def withdraw(self, digest: str) -> None:
        """What lies under the digest: an adapter, or a draft layer."""
        await self.discard([config_key(digest), weights_key(digest), draft_key(digest)])

    async def discard(self, keys: Iterable[str]) -> None:
        """Delete these objects, those that are gone already included; where they may not be deleted
        now, leave them to a sweep."""
        named = list(keys)
        if not named:
            return
        async with self._deleting() as may:
            for key in named if may else ():
                try:
                    await obstore.delete_async(self._objects, key)
                except FileNotFoundError:
                    continue  # gone already, as wanted; some stores say so and some do not


def _size(content: bytes | BinaryIO) -> int:
    return len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size


def _write_all(file: BinaryIO, data: Bytes) -> None:
    """A raw file may take less than it is given, where its disk is nearly full."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def staged_weights(key: str) -> str:
    """Where the weights that came with the form wait for their check."""
    return f"{key}/adapter_model.safetensors"


def staged_draft_layer(key: str) -> str:
    """Where a draft layer that came with the form waits for its check."""
    return f"{key}/{DRAFT_FILE}"


def part_key(upload_id: str, part_id: str) -> str:
    """Where one part of a resumable upload waits."""
    return f"uploads/{upload_id}/{part_id}"
