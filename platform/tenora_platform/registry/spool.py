"""Files for the length of a check: what an adapter's examination reads, away from the store. Knows
no adapter and no tenant."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from tenora_platform.ids import new_id

STALE_S = 3600  # after its last byte; files that somebody still writes are younger


class Spool:
    """The folder that holds them; on a disk of its own where the operator names one."""

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
