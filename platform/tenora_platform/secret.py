"""The server secret and every key derived from it. It knows nothing of what the keys protect."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from tenora_engine.private_folders import make_private
from tenora_platform.ownership import read_own

_LEFT_BY_US = ("postgres/data", "objects", "outbox", "admin_keys")
"""In a data directory: who has one of these had a secret before."""


SECRET_MIN = 32
"""Visible characters of a server secret."""


class SecretLostError(Exception):
    """The secret is not where it was; says how to bring it back."""


@dataclass(frozen=True, slots=True, repr=False)
class ServerSecret:
    """One secret of the installation; each use gets a key of its own by HMAC-SHA-256."""

    root: bytes

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose, independent of every other purpose's."""
        return hmac.new(self.root, purpose.encode(), hashlib.sha256).digest()

    @property
    def fingerprint(self) -> str:
        """Tells this secret from others, and nothing of it."""
        return self.mac("fingerprint", "")[:32]

    def mac(self, purpose: str, message: str) -> str:
        """Hex HMAC-SHA-256 of `message` under the purpose's key."""
        return hmac.new(self.key(purpose), message.encode(), hashlib.sha256).hexdigest()


def load_secret(data_dir: Path, configured: str | None) -> ServerSecret:
    """The operator's TENORA_SECRET, else the one kept in `<data-dir>/secret` (made on first use,
    readable by its owner only). Raises SecretLostError where it is gone and data is not, and
    ForeignOwnerError for another user's."""
    if configured:
        return ServerSecret(configured.encode())
    path = data_dir / "secret"
    if not path.exists():
        _refuse_beside_data(data_dir, path)
        make_private(data_dir)
        _make_private(path, secrets.token_hex(32) + "\n")
    try:
        kept = read_own(path).strip()
    except UnicodeDecodeError as error:
        raise SecretLostError(_lost(path, "is not text: it is damaged")) from error
    if visible(kept) < SECRET_MIN:
        how = (
            f"has only {visible(kept)} of at least {SECRET_MIN} characters" if kept else "is empty"
        )
        raise SecretLostError(_lost(path, how))
    return ServerSecret(kept.encode())


def visible(text: str) -> int:
    """How many of its characters can be seen: others are no secret that somebody chose."""
    return sum(each.isprintable() and not each.isspace() for each in text)


def kept_secret(data_dir: Path, configured: str | None) -> ServerSecret | None:
    """As `load_secret`, but None where there is none yet."""
    if not configured and not (data_dir / "secret").exists():
        _refuse_beside_data(data_dir, data_dir / "secret")
        return None
    return load_secret(data_dir, configured)


def keep_secret(data_dir: Path, secret: ServerSecret) -> None:
    """Put it where `load_secret` finds it, unless another is there."""
    make_private(data_dir)
    _make_private(data_dir / "secret", secret.root.decode() + "\n")


def _refuse_beside_data(data_dir: Path, path: Path) -> None:
    left = [name for name in _LEFT_BY_US if _holds_something(data_dir / name)]
    if left:
        raise SecretLostError(_lost(path, f"is missing, and {data_dir / left[0]} is not"))


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def _lost(path: Path, how: str) -> str:
    return (
        f"The server secret {path} {how}. Without it no key works, and the database and its "
        "books cannot be verified. Restore the file from a backup, or set TENORA_SECRET to its "
        f"content. To start over with an empty installation, move {path.parent} away."
    )


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, whole or not at all; on the disk when it returns."""
    _temporary(path, text).replace(path)
    sync_folder(path.parent)


def _make_private(path: Path, text: str) -> None:
    """As `write_private`, but another process' file stays."""
    temporary = _temporary(path, text)
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()
    sync_folder(path.parent)


def _temporary(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in it is so on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
