"""A file system of a few megabytes, for tests of what happens when a disk is full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mounted at `folder` for as long as the block runs; skips the test where none can be."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, how: Literal["ro", "rw"]) -> None:
    """Nothing can be written any more, or again."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """No byte is free any more until the file is deleted."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        while shutil.disk_usage(folder).free:
            file.write(bytes(4096))
    return filler
