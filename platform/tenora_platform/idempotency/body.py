"""What two bodies have in common that say the same: a hash taken as they pass by."""

from __future__ import annotations

import asyncio
import hashlib

from python_multipart.multipart import parse_options_header
from starlette.types import Message, Receive

_BATCH_BYTES = 1024 * 1024  # hashed in a thread; takes about a millisecond


class HashedBody:
    """A `receive` that hashes what passes. The boundary of a form is left out: a client that sends
    the same form again chooses another one."""

    def __init__(self, receive: Receive, content_type: bytes) -> None:
        _, options = parse_options_header(content_type)
        self._boundary = options.get(b"boundary") or b""
        self._receive = receive
        self._digest = hashlib.sha256()
        self._waiting = bytearray()
        self.complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._waiting += message.get("body", b"")
        self.complete = not message.get("more_body", False)
        if len(self._waiting) >= _BATCH_BYTES:
            await asyncio.to_thread(self._hash)
        return message

    async def read_to_end(self) -> bool:
        """Whether the whole body came; nothing of it is kept."""
        while not self.complete:
            message = await self.receive()
            if message["type"] != "http.request":
                return False
        return True

    def sha256(self) -> str:
        """Hex; of a complete body."""
        self._hash()
        return self._digest.hexdigest()

    def _hash(self) -> None:
        data = bytes(self._waiting)
        if self._boundary:
            data = data.replace(self._boundary, b"")
        # The last bytes may be the beginning of a boundary.
        kept = 0 if self.complete else max(len(self._boundary) - 1, 0)
        cut = len(data) - kept
        self._digest.update(data[:cut])
        self._waiting = bytearray(data[cut:])
