"""Files for the length of a check: what an adapter's examination reads, away from the store. They
have no name, so that nothing of them outlives their process. Knows no adapter and no tenant."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tenora_engine.private_folders import make_private

STALE_S = 3600  # after its last byte; files that somebody still writes are younger


class Spool:
    """The folder that holds them; on a disk of its own where the operator names one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sweep(self) -> None:
        """Remove what a crash has left: of a version of ours whose files had names, and where the
        disk's file system knows no others."""
        for path in self._folder.glob("spool_*"):
            with contextlib.suppress(FileNotFoundError):  # its owner was quicker
                if path.stat().st_mtime < time.time() - STALE_S:
                    path.unlink()

    @contextlib.contextmanager
    def file(self) -> Iterator[BinaryIO]:
        """An empty file that is gone when the block ends, or the process, however they end."""
        make_private(self._folder)
        with tempfile.TemporaryFile(dir=self._folder, prefix="spool_", buffering=0) as file:
            yield file
