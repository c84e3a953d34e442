"""Seal: proves that a value found where others may write is one of ours, of this kind, under this
name, and not older than it may be. Knows no store, but which errors of Redis mean a damaged key."""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Callable

from tenora_engine.clocks import Clock, wall

KEY_BYTES = 32
TAG_BYTES = 32
_FORM = b"\x01"  # of a sealed value: this, the tag, until when, the content
_UNTIL = struct.Struct("<d")
_HEAD_BYTES = len(_FORM) + TAG_BYTES + _UNTIL.size
_JOINED_MAX = 16_384  # bytes that are copied sooner than hashed in two calls

_DAMAGED = re.compile(r"^user_script:\d+: |not an integer|not a (valid )?float")
"""The errors of a value that a script cannot work on, or that a command cannot count. An error of a
command within a script has its place at its end, and is not meant."""
_OF_SCRIPT = re.compile(r"^Error running script .*?: @user_script: ?\d+: -?")  # of Redis 6


class Seal:
    """HMAC-SHA-256 under one key over namespace, name, expiry and content. It is no cipher, and it
    cannot tell which of two values sealed for the same name is the newer: what must not come back
    has to expire. `rejected` is told the namespace of each value that is not ours."""

    def __init__(
        self,
        key: bytes,
        rejected: Callable[[str], object] = lambda namespace: None,
        clock: Clock = wall,
    ) -> None:
        """Raises ValueError for a key of another length."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a seal's key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._rejected = rejected
        self._clock = clock

    def tag(self, namespace: str, name: str, content: bytes | memoryview) -> bytes:
        """TAG_BYTES that only a holder of the key can make. Releases the GIL for large contents."""
        of, called = namespace.encode(), name.encode(errors="surrogatepass")
        head = struct.pack("<II", len(of), len(called)) + of + called
        if len(content) <= _JOINED_MAX:
            return hmac.digest(self._key, head + content, "sha256")
        mac = hmac.new(self._key, head, "sha256")
        mac.update(content)
        return mac.digest()

    def close(self, namespace: str, name: str, content: bytes, kept_s: float) -> bytes:
        """The content, sealed for `kept_s` from now."""
        body = _UNTIL.pack(self._clock() + kept_s) + content
        return _FORM + self.tag(namespace, name, body) + body

    def open(self, namespace: str, name: str, sealed: bytes | str | None) -> bytes | None:
        """The content; None for nothing, for what was not sealed so (which `rejected` is told), and
        for what has expired."""
        if sealed is None:
            return None
        raw = sealed.encode() if isinstance(sealed, str) else sealed
        start = len(_FORM)
        body = raw[start + TAG_BYTES :]
        tag = self.tag(namespace, name, body)
        is_ours = raw.startswith(_FORM) and hmac.compare_digest(raw[start : start + TAG_BYTES], tag)
        if not is_ours or len(raw) < _HEAD_BYTES:
            self._rejected(namespace)
            return None
        if _UNTIL.unpack_from(body)[0] < self._clock():
            return None
        return body[_UNTIL.size :]

    def reject(self, namespace: str) -> None:
        """A value that was opened, and is not what its reader wants."""
        self._rejected(namespace)


def is_damage(error: Exception) -> bool:
    """Whether an error that Redis answered is about what a key holds: another type than is wanted,
    or contents that a command or script of ours cannot work on. Not that it is full, read-only or
    forbids something."""
    from redis.exceptions import ResponseError

    if type(error) is not ResponseError:  # those have classes of their own
        return False
    said = str(error).rpartition(" of pipeline caused error: ")[2].lstrip("('\"")
    said = _OF_SCRIPT.sub("", said.removeprefix("ERR "))
    if said.startswith("WRONGTYPE "):
        return True
    kind = said.partition(" ")[0]
    return not kind.isupper() and _DAMAGED.search(said) is not None
