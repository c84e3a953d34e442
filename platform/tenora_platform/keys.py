"""The form of an API key: `tn_<prefix>_<random>_<checksum>`. It knows how keys are made, recognised
and hashed, not where they are kept or what they allow."""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass, field

from tenora_platform.ids import random_text
from tenora_platform.secret import ServerSecret

_SECRET_CHARACTERS = 32
_WITHIN = re.compile(r"tna?_([0-9a-z]{8})_[0-9a-z]{32}_[0-9a-f]{8}")
_FORM = re.compile(r"^(tn|tna)_([0-9a-z]{8})_([0-9a-z]{32})_([0-9a-f]{8})$")


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made. `text` is shown once and then forgotten."""

    prefix: str
    text: str = field(repr=False)


def make_key(kind: str = "tn") -> NewKey:
    """160 random bits. The prefix names the key in lists and logs; the checksum (CRC-32) lets a
    mistyped key be refused without asking the database."""
    prefix = random_text(8)
    body = f"{kind}_{prefix}_{random_text(32)}"
    return NewKey(prefix=prefix, text=f"{body}_{_checksum(body)}")


def key_prefix(text: str, kind: str = "tn") -> str | None:
    """The prefix of a well-formed key (of a tenant's; "tna": of the operator's), or None."""
    match = _FORM.match(text)
    if match is None or match.group(1) != kind:
        return None
    body = text.rsplit("_", 1)[0]
    return match.group(2) if match.group(4) == _checksum(body) else None


def hide_keys(text: str) -> str:
    """The same without the keys in it: their prefixes alone stay. For whatever is kept or logged
    of what a client sent, who may have put a key anywhere."""
    if "tn" not in text:
        return text
    return _WITHIN.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    body, _, checksum = found[0].rpartition("_")
    if checksum != _checksum(body):
        return found[0]
    return f"{body[:-_SECRET_CHARACTERS]}…"


def hash_key(text: str, secret: ServerSecret) -> str:
    """What is stored: hex HMAC-SHA-256 under the pepper, useless without the server secret."""
    return hmac.new(secret.key("api-key-pepper"), text.encode(), hashlib.sha256).hexdigest()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
