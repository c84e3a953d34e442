"""Where adapters' bytes lie: uploads under `staging/` until they are checked, then the normalised
config and the weights by content digest. Knows keys and objects, not rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import obstore
from obstore.store import ObjectStore

from tenora_engine.adapters.identity import config_key, weights_key

_CHUNK_BYTES = 4 * 1024 * 1024


class AdapterStorage:
    """Durable before it is referred to: each method returns once the store has the bytes."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def stage(self, key: str, config: bytes, weights: Path | None) -> None:
        """Keep an upload until it has been checked; None: its weights lie in the store already."""
        await obstore.put_async(self._objects, f"{key}/adapter_config.json", config)
        if weights is not None:
            await obstore.put_async(self._objects, staged_weights(key), weights)

    async def staged_config(self, key: str) -> bytes:
        """Raises FileNotFoundError."""
        config = await obstore.get_async(self._objects, f"{key}/adapter_config.json")
        return bytes(await config.bytes_async())

    async def read(self, keys: Sequence[str]) -> AsyncIterator[bytes]:
        """The bytes of these objects, one after the other. Raises FileNotFoundError."""
        for key in keys:
            result = await obstore.get_async(self._objects, key)
            async for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                yield chunk

    async def fetch(self, keys: Sequence[str], target: Path) -> None:
        """Write these objects to `target`, one after the other. Raises FileNotFoundError."""
        with target.open("wb") as file:
            async for chunk in self.read(keys):
                await asyncio.to_thread(file.write, chunk)

    async def discard_staged(self, key: str) -> None:
        await self.discard([f"{key}/adapter_config.json", staged_weights(key)])

    async def publish(self, digest: str, config: bytes, weights: Path) -> None:
        """Store checked content under its digest. The config goes last: whoever finds it finds
        the weights too."""
        await obstore.put_async(self._objects, weights_key(digest), weights)
        await obstore.put_async(self._objects, config_key(digest), config)

    async def published(self, digest: str) -> bool:
        try:
            await obstore.head_async(self._objects, config_key(digest))
        except FileNotFoundError:
            return False
        return True

    async def withdraw(self, digest: str) -> None:
        await self.discard([config_key(digest), weights_key(digest)])

    async def put_part(self, key: str, part: Path) -> None:
        await obstore.put_async(self._objects, key, part)

    async def discard(self, keys: Iterable[str]) -> None:
        """Delete these objects, those that are gone already included."""
        for key in keys:
            try:
                await obstore.delete_async(self._objects, key)
            except FileNotFoundError:
                continue  # gone already, as wanted; some stores say so and some do not


def staged_weights(key: str) -> str:
    """Where the weights that came with the form wait for their check."""
    return f"{key}/adapter_model.safetensors"


def part_key(upload_id: str, part_id: str) -> str:
    """Where one part of a resumable upload waits."""
    return f"uploads/{upload_id}/{part_id}"
