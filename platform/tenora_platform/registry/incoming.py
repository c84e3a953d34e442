"""Uploads on their way into the object store: hashed and handed on as they arrive, off the event
loop, never whole in memory and never through a file of ours. Knows keys of the store, not what
lies there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tenora_platform.registry.disk import StorageFullError
from tenora_platform.registry.pace import Pace
from tenora_platform.registry.quota import Room
from tenora_platform.registry.storage import AdapterStorage

PIECE_BYTES = 1024 * 1024  # to hash these takes about a millisecond


class _AbandonedError(Exception):
    """Thrown into the store's reading, which then gives up what it has."""


class IncomingObject:
    """An object being received: `write` and `settle` until all has come, then `flush`, after which
    `bytes` and `sha256` are known, and `finish`, after which the store has it. Made by `incoming`.
    """

    def __init__(self, storage: AdapterStorage, key: str, room: Room, pace: Pace) -> None:
        self.key = key
        self.bytes = 0
        self._storage = storage
        self._room = room
        self._pace = pace
        self._digest = hashlib.sha256()
        self._arrived = bytearray()
        self._pieces: asyncio.Queue[bytes | _AbandonedError | None] = asyncio.Queue(1)
        self._storing: asyncio.Task[None] | None = None
        self._full: StorageFullError | None = None
        self._ended = False

    def write(self, data: bytes | memoryview) -> None:
        """Raises the room's refusal once more has come than it holds."""
        self.bytes += len(data)
        if self.bytes > self._room.bytes:
            raise self._room.refusal
        self._arrived += data

    async def settle(self) -> None:
        """Hand on what came, if that is worth a thread's while, at the pace of uploads. Where the
        disk is full, what came is given up and what comes is dropped: the client has to be read to
        its end to be answered.
        """
        if len(self._arrived) >= PIECE_BYTES:
            await self._hand_on()
            await self._pace.keep()

    async def flush(self) -> None:
        """All has come. Raises StorageFullError if there was no room for it."""
        await self._hand_on()
        if self._full is not None:
            raise self._full

    async def finish(self) -> None:
        """The object is durable. Raises StorageFullError, and then nothing is left of it."""
        await self.flush()
        await self._give(None)
        self._ended = True
        assert self._storing is not None  # `_give` has begun it
        await self._storing

    async def abandon(self) -> None:
        """The store forgets what it has of an object that was not finished."""
        if self._storing is None or self._ended:
            return
        with contextlib.suppress(_AbandonedError, StorageFullError):
            await self._give(_AbandonedError())
            await self._storing

    @property
    def sha256(self) -> str:
        """Hex, of what was flushed."""
        return self._digest.hexdigest()

    async def _hand_on(self) -> None:
        arrived, self._arrived = self._arrived, bytearray()
        if self._full is not None:
            return
        try:
            await asyncio.to_thread(self._hash, arrived)
            await self._give(bytes(arrived))
        except StorageFullError as error:
            self._full = error
            await self.abandon()

    def _hash(self, arrived: bytearray) -> None:
        self._storage.require_room(len(arrived))
        self._digest.update(arrived)

    async def _give(self, piece: bytes | _AbandonedError | None) -> None:
        """To the store, when it has taken the one before. Raises what ended it."""
        if self._storing is None:
            self._storing = asyncio.create_task(self._storage.put_stream(self.key, self._all()))
        giving = asyncio.create_task(self._pieces.put(piece))
        await asyncio.wait({giving, self._storing}, return_when=asyncio.FIRST_COMPLETED)
        if not giving.done():
            giving.cancel()
            await self._storing  # it has failed: nobody takes the piece

    async def _all(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, _AbandonedError):
                raise piece
            yield piece


@contextlib.asynccontextmanager
async def incoming(
    storage: AdapterStorage, key: str, room: Room, pace: Pace
) -> AsyncIterator[IncomingObject]:
    """An object to receive into; nothing is left of one that is not finished by the end."""
    arriving = IncomingObject(storage, key, room, pace)
    try:
        yield arriving
    finally:
        await asyncio.shield(arriving.abandon())


@dataclass(frozen=True)
class ReceivedLayer:
    """A draft layer that came with weights, staged beside them."""

    bytes: int
    sha256: str  # hex

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"


@dataclass(frozen=True)
class ReceivedWeights:
    """A whole weights file in the store: the parts of a completed upload, else staged under the id
    of the version that it will be. That id has a reservation, where there is one. `source` is where
    it was imported from, `chat_template` and `draft_layer` what came beside."""

    bytes: int
    sha256: str  # hex
    version_id: str | None = None
    upload_id: str | None = None
    source: str | None = None
    chat_template: str | None = None
    draft_layer: ReceivedLayer | None = None

    @property
    def all_bytes(self) -> int:
        """What the version takes in the store."""
        return self.bytes + self.layer_bytes

    @property
    def layer_bytes(self) -> int:
        return 0 if self.draft_layer is None else self.draft_layer.bytes
