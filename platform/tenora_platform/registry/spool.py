"""Uploads on their way: written to a file as they arrive, hashed on the way, never whole in memory.
Knows no adapter and no tenant."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from tenora_platform.errors import TooLargeError
from tenora_platform.ids import new_id


class SpoolFile:
    """A file being received: `write` until done, then read `path`, `bytes` and `sha256`."""

    def __init__(self, path: Path, bytes_max: int, what: str) -> None:
        self.path = path
        self.bytes = 0
        self._bytes_max = bytes_max
        self._what = what
        self._digest = hashlib.sha256()
        self._file = path.open("xb")

    def write(self, data: bytes | memoryview) -> None:
        """Raises TooLargeError once more than `bytes_max` bytes came."""
        self.bytes += len(data)
        if self.bytes > self._bytes_max:
            raise TooLargeError(
                f"{self._what} is larger than allowed ({self._bytes_max} bytes).",
                param=self._what,
            )
        self._digest.update(data)
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


STALE_S = 24 * 3600  # no upload takes that long; another worker's younger files are let be


class Spool:
    """The folder that holds what is on its way."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
    def file(self, bytes_max: int, what: str) -> Iterator[SpoolFile]:
        """A file to receive at most `bytes_max` bytes of `what`; gone when the block ends."""
        with self.place() as path:
            spooled = SpoolFile(path, bytes_max, what)
            try:
                yield spooled
            finally:
                spooled.close()
