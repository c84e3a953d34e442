"""Uploads on their way: written to a file and hashed as they arrive, in threads, so that a large
one delays nobody's tokens; never whole in memory. Knows no adapter and no tenant."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tenora_platform.ids import new_id
from tenora_platform.registry.disk import StorageFullError, full_disk_named, require_room
from tenora_platform.registry.quota import Room

FLUSH_BYTES = 1024 * 1024  # to hash and write these takes about a millisecond


class SpoolFile:
    """A file being received: `write` and `settle` until done, `finish`, then read `path`, `bytes`
    and `sha256`."""

    def __init__(self, path: Path, room: Room, *, reserve_bytes: int = 0) -> None:
        self.path = path
        self.bytes = 0
        self._reserve_bytes = reserve_bytes
        self._full: StorageFullError | None = None
        self._room = room
        self._digest = hashlib.sha256()
        self._arrived = bytearray()
        self._file = path.open("xb", buffering=0)  # a full disk is met by `write`, not by `close`

    def write(self, data: bytes | memoryview) -> None:
        """Raises TooLargeError once more has come than there is room for."""
        self.bytes += len(data)
        if self.bytes > self._room.bytes:
            raise self._room.refusal
        self._arrived += data

    async def settle(self) -> None:
        """Hash and write what came, if that is worth a thread's while. On a full disk what came is
        given up and what comes is dropped: the client has to be read to its end to be answered.
        """
        if len(self._arrived) >= FLUSH_BYTES:
            await asyncio.to_thread(self._flush)

    async def finish(self) -> None:
        """The file is complete. Raises StorageFullError if there was no room for it."""
        await asyncio.to_thread(self._flush)
        self.close()
        if self._full is not None:
            raise self._full

    def _flush(self) -> None:
        arrived, self._arrived = self._arrived, bytearray()
        if self._full is not None:
            return
        try:
            with full_disk_named():
                require_room(self.path.parent, len(arrived), self._reserve_bytes)
                self._write(arrived)
        except StorageFullError as error:
            self._full = error
            self._file.truncate(0)

    def _write(self, arrived: bytearray) -> None:
        self._digest.update(arrived)
        left = memoryview(arrived)
        while left:
            left = left[self._file.write(left) :]

    def close(self) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@dataclass(frozen=True)
class ReceivedWeights:
    """A whole weights file: at `path` until the request ends, or the parts of a completed upload in
    the store. One of the two is set."""

    bytes: int
    sha256: str  # hex
    path: Path | None = None
    upload_id: str | None = None


STALE_S = 3600  # after its last byte; files that somebody still receives are younger


class Spool:
    """The folder that holds what is on its way."""

    def __init__(self, folder: Path, *, reserve_bytes: int = 0) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    def sweep(self) -> None:
        """Remove what a crash has left."""
        for path in self._folder.glob("spool_*"):
            with contextlib.suppress(FileNotFoundError):  # its owner was quicker
                if path.stat().st_mtime < time.time() - STALE_S:
                    path.unlink()

    @contextlib.contextmanager
    def place(self) -> Iterator[Path]:
        """A path for a file that is removed when the block ends, however it ends."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / new_id("spool")
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def file(self, room: Room) -> Iterator[SpoolFile]:
        """A file to receive into; gone when the block ends."""
        with self.place() as path:
            spooled = SpoolFile(path, room, reserve_bytes=self._reserve_bytes)
            try:
                yield spooled
            finally:
                spooled.close()
