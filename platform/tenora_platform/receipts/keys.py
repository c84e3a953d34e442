"""Public keys of receipts as others know them: JSON Web Keys (RFC 8037) in a set (RFC 7517), each
named by its thumbprint (RFC 7638). It knows no database and no receipt."""

from __future__ import annotations

import binascii
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ALGORITHM = "EdDSA"
KEY_BYTES = 32


class KeysError(Exception):
    """What was given is no set of keys; the message says why."""


def encode(raw: bytes) -> str:
    """Base64url without padding, as JOSE writes bytes."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Only what `encode` gives: the last character has bits that mean nothing, and another one in
    its place would be another text of the same bytes. Raises ValueError."""
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error) as error:
        raise ValueError("not base64url") from error
    if encode(raw) != text:
        raise ValueError("not base64url in canonical form")
    return raw


def key_id(public: bytes) -> str:
    """The thumbprint of an Ed25519 public key (32 bytes)."""
    members = {"crv": "Ed25519", "kty": "OKP", "x": encode(public)}
    return encode(hashlib.sha256(rfc8785.dumps(members)).digest())


def key_set(publics: Iterable[bytes]) -> dict[str, Any]:
    """The set of these keys, in their order."""
    return {
        "keys": [
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "x": encode(public),
                "kid": key_id(public),
                "use": "sig",
                "alg": ALGORITHM,
            }
            for public in publics
        ]
    }


def read_key_set(found: Any) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of a set, by id; of other kinds are left out. Raises KeysError."""
    keys = found.get("keys") if isinstance(found, Mapping) else None
    if not isinstance(keys, list):
        raise KeysError('it is not a set of keys: {"keys": [...]}')
    read: dict[str, Ed25519PublicKey] = {}
    for key in keys:
        if not isinstance(key, Mapping) or (key.get("kty"), key.get("crv")) != ("OKP", "Ed25519"):
            continue
        try:
            public = decode(key["x"])
            read[str(key["kid"])] = Ed25519PublicKey.from_public_bytes(public)
        except (KeyError, ValueError, AttributeError) as error:
            raise KeysError(f"one of its Ed25519 keys cannot be read: {error}") from error
    return read
