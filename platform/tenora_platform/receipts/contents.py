"""Prompts and answers of tenants that have chosen to keep them: how they are gathered while a
request runs, and how they are sealed. It knows no database and no HTTP."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tenora_platform.secret import ServerSecret

_NONCE_BYTES = 12
_LEVEL = 1  # of zlib: a third of the time for a few per cent of the size


class Said(Protocol):
    """What one choice of an answer gains (`inference.generation.Piece`)."""

    @property
    def choice(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...


@dataclass
class Transcript:
    """One request as it was asked, and what has been answered so far."""

    tenant_id: str
    endpoint: str
    asked: dict[str, Any]  # the body, as far as the client wrote it
    asked_bytes: int
    _texts: dict[int, list[str]] = field(default_factory=dict)
    _ends: dict[int, str] = field(default_factory=dict)

    def add(self, piece: Said) -> None:
        self._texts.setdefault(piece.choice, []).append(piece.text)
        if piece.finish_reason is not None:
            self._ends[piece.choice] = piece.finish_reason

    @property
    def bytes(self) -> int:
        """About what it holds in memory."""
        return self.asked_bytes + sum(len(text) for texts in self._texts.values() for text in texts)

    def contents(self) -> dict[str, Any]:
        """A choice that was cut off has no `finish_reason`."""
        return {
            "endpoint": self.endpoint,
            "request": self.asked,
            "choices": [
                {"index": at, "text": "".join(texts), "finish_reason": self._ends.get(at)}
                for at, texts in sorted(self._texts.items())
            ],
        }


@dataclass(frozen=True)
class Sealed:
    """As it is stored: `bytes` is the length of what it holds."""

    sealed: bytes
    bytes: int


class Seal:
    """Compresses and encrypts (AES-256-GCM under the server secret), bound to tenant and request:
    a row moved to another tenant does not open."""

    def __init__(self, secret: ServerSecret) -> None:
        self._key = AESGCM(secret.key("kept-contents"))

    def close(self, tenant_id: str, request_id: str, contents: dict[str, Any]) -> Sealed:
        text = json.dumps(contents, separators=(",", ":")).encode()
        return Sealed(self.close_text(tenant_id, request_id, text), len(text))

    def open(self, tenant_id: str, request_id: str, sealed: bytes) -> dict[str, Any] | None:
        """None if it was sealed for something else, or under another secret."""
        text = self.open_text(tenant_id, request_id, sealed)
        return None if text is None else json.loads(text)

    def close_text(self, tenant_id: str, name: str, text: bytes) -> bytes:
        """What `open_text` opens for the same tenant and name alone."""
        nonce = os.urandom(_NONCE_BYTES)
        packed = zlib.compress(text, _LEVEL)
        return nonce + self._key.encrypt(nonce, packed, _bound(tenant_id, name))

    def open_text(self, tenant_id: str, name: str, sealed: bytes) -> bytes | None:
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            packed = self._key.decrypt(nonce, rest, _bound(tenant_id, name))
        except InvalidTag:
            return None
        return zlib.decompress(packed)


def _bound(tenant_id: str, request_id: str) -> bytes:
    return f"{tenant_id}/{request_id}".encode()
