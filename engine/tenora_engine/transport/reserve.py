"""DiskReserve: room on the outbox's disk that nobody else can take: when the disk is full, the
records of what still runs go there. It knows no records."""

from __future__ import annotations

import os
from pathlib import Path


class DiskReserve:
    """A file of `size_bytes` that holds nothing. One owner, one thread."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self._path = directory / "reserve"
        self._size_bytes = size_bytes

    def take(self) -> None:
        """Raises OSError where the disk has not so much room."""
        if self._is_held():
            return
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size_bytes)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def give(self) -> bool:
        """Whether there was one, and its room is free now."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _is_held(self) -> bool:
        try:
            found = self._path.stat()
        except OSError:
            return False
        return found.st_blocks * 512 >= self._size_bytes
