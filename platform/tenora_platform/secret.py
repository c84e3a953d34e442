"""The server secret and every key derived from it. It knows nothing of what the keys protect."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class ServerSecret:
    """One secret of the installation; each use gets a key of its own by HMAC-SHA-256."""

    root: bytes

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose, independent of every other purpose's."""
        return hmac.new(self.root, purpose.encode(), hashlib.sha256).digest()

    def mac(self, purpose: str, message: str) -> str:
        """Hex HMAC-SHA-256 of `message` under the purpose's key."""
        return hmac.new(self.key(purpose), message.encode(), hashlib.sha256).hexdigest()


def load_secret(data_dir: Path, configured: str | None) -> ServerSecret:
    """The operator's TENORA_SECRET, else the one kept in `<data-dir>/secret` (made on first use,
    readable by its owner only)."""
    if configured:
        return ServerSecret(configured.encode())
    path = data_dir / "secret"
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_hex(32) + "\n")
    return ServerSecret(path.read_text().strip().encode())


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)
