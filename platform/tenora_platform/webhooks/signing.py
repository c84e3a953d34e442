"""Signatures of webhooks as the Standard Webhooks specification has them (symmetric, `v1`): an HMAC
over id, time and body under the endpoint's own secret."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

from cryptography.fernet import Fernet

from tenora_platform.secret import ServerSecret

_PREFIX = "whsec_"
_BYTES = 32  # the specification: 24 to 64


def new_secret() -> str:
    """`whsec_` and base64."""
    return _PREFIX + b64encode(secrets.token_bytes(_BYTES)).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,<base64>` of one secret."""
    key = b64decode(secret.removeprefix(_PREFIX))
    content = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{b64encode(hmac.new(key, content, sha256).digest()).decode()}"


def headers(keys: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three of the specification. While a secret is rotated, `keys` are two."""
    signed = [signature(each, message_id, timestamp, body) for each in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signed),
    }


class SecretBox:
    """Keeps endpoints' secrets: they must be known again to sign, and are not in the database as
    they are."""

    def __init__(self, secret: ServerSecret) -> None:
        self._fernet = Fernet(urlsafe_b64encode(secret.key("webhook-secrets")))

    def closed(self, secret: str) -> str:
        return self._fernet.encrypt(secret.encode()).decode()

    def opened(self, kept: str) -> str:
        """Raises InvalidToken for what another server secret closed."""
        return self._fernet.decrypt(kept.encode()).decode()
