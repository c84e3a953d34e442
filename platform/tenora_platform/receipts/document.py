"""A receipt as a document that proves itself: canonical JSON (RFC 8785) under an Ed25519 signature.
It knows how one is signed and in which ways one fails, not what a receipt says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tenora_platform.receipts.keys import ALGORITHM, decode, encode

OBJECT = "receipt"
VERSION = 1
BYTES_MAX = 16 * 1024**2
_SIGNATURE = {"alg": str, "digests": dict, "kid": str, "value": str}


class ReceiptError(Exception):
    """The receipt does not hold; the message says why."""


class NotAReceiptError(ReceiptError):
    """Nothing that could be verified."""


class UnknownKeyError(ReceiptError):
    """It may be right: the key that it names is not among those given."""


class ChangedError(ReceiptError):
    """`fields` are not what was signed."""

    def __init__(self, fields: Iterable[str]) -> None:
        self.fields = tuple(fields)
        many = len(self.fields) > 1
        super().__init__(
            f"{', '.join(map(_shown, self.fields))} {'were' if many else 'was'} changed after the "
            "receipt was signed"
        )


class WrongSignatureError(ReceiptError):
    """Its fields fit together, and the signature is not the named key's."""


def sign(content: Mapping[str, Any], kid: str, key: Ed25519PrivateKey) -> bytes:
    """The receipt in canonical form. The signature is over all of it but its own value; it covers a
    digest of each field, by which a change can be named. Raises rfc8785.CanonicalizationError for
    what JSON cannot hold."""
    document: dict[str, Any] = {"object": OBJECT, "version": VERSION, **content}
    signature: dict[str, Any] = {"alg": ALGORITHM, "kid": kid, "digests": _digests(document)}
    signed = rfc8785.dumps({**document, "signature": signature})
    value = encode(key.sign(signed))
    return rfc8785.dumps({**document, "signature": {**signature, "value": value}})


def verify(text: bytes, keys: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    """The receipt, if one of `keys` has signed it just so (however it is indented). Raises
    NotAReceiptError, UnknownKeyError, ChangedError, WrongSignatureError."""
    document = _read(text)
    signature = document["signature"]
    key = keys.get(signature["kid"])
    if key is None:
        raise UnknownKeyError(
            f"it is signed with the key {_shown(signature['kid'])}, which is not among the "
            f"{len(keys)} given keys"
        )
    claimed = {name: part for name, part in signature.items() if name != "value"}
    try:
        signed = rfc8785.dumps({**document, "signature": claimed})
        key.verify(decode(signature["value"]), signed)
    except (InvalidSignature, ValueError) as error:
        changed = _changed(document)
        if changed:
            raise ChangedError(changed) from error
        raise WrongSignatureError(
            f"its signature does not match the key {_shown(signature['kid'])}"
        ) from error
    return document


def _read(text: bytes) -> dict[str, Any]:
    """Raises NotAReceiptError."""
    if len(text) > BYTES_MAX:
        raise NotAReceiptError(f"it is larger than {BYTES_MAX} bytes")
    try:
        document = json.loads(text, object_pairs_hook=_once)
        rfc8785.dumps(document)
    except (ValueError, RecursionError) as error:
        raise NotAReceiptError(f"it is not valid JSON: {error}") from error
    if not isinstance(document, dict) or document.get("object") != OBJECT:
        raise NotAReceiptError(f'it is not a JSON object with "object": "{OBJECT}"')
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        raise NotAReceiptError(
            f"it has the version {_shown(version)}, which this Tenora does not know"
        )
    signature = document.get("signature")
    if (
        not isinstance(signature, dict)
        or set(signature) != set(_SIGNATURE)
        or not all(isinstance(signature[name], kind) for name, kind in _SIGNATURE.items())
    ):
        raise NotAReceiptError("its signature is missing or malformed")
    if signature["alg"] != ALGORITHM:
        raise NotAReceiptError(
            f"it is signed with {_shown(signature['alg'])}, not with {ALGORITHM}"
        )
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names occur once: of two of a name a reader may see the other one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name appears twice in one object")
    return made


def _digests(document: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.sha256(rfc8785.dumps(value)).hexdigest()[:16]
        for name, value in document.items()
    }


def _changed(document: Mapping[str, Any]) -> list[str]:
    """The fields that are not as their digests say, missing and added ones too."""
    said = document["signature"]["digests"]
    found = _digests({name: value for name, value in document.items() if name != "signature"})
    return sorted(name for name in {*said, *found} if said.get(name) != found.get(name))


def _shown(value: object) -> str:
    return repr(value)[:80]
