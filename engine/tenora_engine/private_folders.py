"""Folders that other users of the machine can neither read nor write. It knows nothing of what they
hold."""

from __future__ import annotations

from pathlib import Path

_MODE = 0o700


def make_private(folder: Path) -> None:
    """Make the folder, unless it is there, and those above it that are missing: each closed to
    others whatever the umask, which is all that `parents=True` would go by. Raises OSError."""
    try:
        folder.mkdir(mode=_MODE, exist_ok=True)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_private(folder.parent)
        folder.mkdir(mode=_MODE, exist_ok=True)
