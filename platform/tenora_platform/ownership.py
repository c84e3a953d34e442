"""Whose the files are that we believe: ours, or root's, who can change everything anyway. It knows
nothing of what they say."""

from __future__ import annotations

import os
from pathlib import Path


class ForeignOwnerError(Exception):
    """A file or folder belongs to another user, who can change it; says what to do."""


def require_own(path: Path) -> None:
    """Raises ForeignOwnerError for what neither this user nor root owns; nothing is no one's."""
    try:
        _require(path, path.stat().st_uid)
    except FileNotFoundError:
        return


def read_own(path: Path) -> str:
    """The text of a file that is ours: of the file that is read, not of what lies there by then.
    Raises ForeignOwnerError, OSError and UnicodeDecodeError."""
    with path.open(encoding="utf-8") as file:
        _require(path, os.fstat(file.fileno()).st_uid)
        return file.read()


def _require(path: Path, owner: int) -> None:
    us = os.geteuid()
    if owner not in (us, 0):
        raise ForeignOwnerError(
            f"{path} belongs to the user {owner}, not to the user {us} that runs Tenora: whoever "
            f"owns it can replace what Tenora trusts. Make it yours with `chown -R {us} {path}`, "
            f"or run Tenora as the user {owner}."
        )
