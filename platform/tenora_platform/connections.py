"""What a connection may cost beside its request: heads in time, bodies and answers by a least rate,
so many connections of one address and in all, with room kept for the probes. Knows HTTP as bytes;
what is asked for, `http` and the application see to."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import sys
import termios
import time
from dataclasses import dataclass
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenora_platform.errors import ApiError, UnavailableError, response_of

PROBES = (b"/healthz", b"/readyz", b"/health", b"/health_generate")
PROBE_CONNECTIONS = 32
"""Beyond the limits: connections that are taken all the same, for the probes alone."""
FILES_KEPT = 512
"""Open files that are not connections of clients: database, Redis, uploads, the engine."""
HEAD_BYTES_MAX = 65_536
_SETTLED_S = 1.0  # a connection younger than this may have a head that was not read yet
_SWEEP_S = 1.0
_CUTS_AT_ONCE = 16  # 0.1 ms each, in which nobody else is served
_NEXT_CUTS_S = 0.02


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`body_rate` in bytes a second, over every `body_window_s` in which we read; the same of
    answers, while they wait for the client to read."""

    total: int
    per_address: int
    head_s: float = 10.0
    body_rate: int = 1000
    body_window_s: float = 10.0


class Connections:
    """All connections of one process, oldest first, and whose they are."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._all: dict[GuardedProtocol, None] = {}
        self._by_address: dict[str, dict[GuardedProtocol, None]] = {}
        self._probes: dict[GuardedProtocol, None] = {}
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: GuardedProtocol) -> None:
        """Take a connection. Where its address or all have too many, the oldest of those that ask
        for nothing makes room; where none does, the new one may only ask for the probes."""
        same = self._by_address.setdefault(connection.address, {})
        limits = self.limits
        for group, most in ((same, limits.per_address), (self._all, limits.total)):
            if len(group) >= most and not self._make_room(group):
                connection.for_probes = True
        if connection.for_probes:
            if len(self._probes) >= PROBE_CONNECTIONS:
                next(iter(self._probes)).cut(_TOO_MANY)
            self._probes[connection] = None
        else:
            self._all[connection] = None
            self._by_address.setdefault(connection.address, {})[connection] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._look)

    def discard(self, connection: GuardedProtocol) -> None:
        self._all.pop(connection, None)
        self._probes.pop(connection, None)
        same = self._by_address.get(connection.address)
        if same is not None:
            same.pop(connection, None)
            if not same:
                del self._by_address[connection.address]

    def _make_room(self, group: dict[GuardedProtocol, None]) -> bool:
        settled_s = time.monotonic() - _SETTLED_S
        for connection in group:
            if connection.asks_nothing_since(settled_s):
                connection.cut(_TOO_MANY)
                return True
        return False

    def _look(self) -> None:
        now, before = time.monotonic(), len(self._all) + len(self._probes)
        for connection in [*self._all, *self._probes]:
            connection.check(now)
            if before - len(self._all) - len(self._probes) >= _CUTS_AT_ONCE:
                break
        left = len(self._all) + len(self._probes)
        wait_s = _SWEEP_S if before - left < _CUTS_AT_ONCE else _NEXT_CUTS_S
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(wait_s, self._look) if left else None


def guarded(connections: Connections) -> type[asyncio.Protocol]:
    """The class for `uvicorn.Config(http=...)`."""

    class Guarded(GuardedProtocol):
        guard = connections

    return Guarded


class GuardedProtocol(HttpToolsProtocol):
    """One connection: uvicorn's, with a clock. Made by `guarded`."""

    guard: Connections

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._served = self.app
        self.address = ""
        self.for_probes = False
        self._since_s: float | None = None  # when what is not a whole head yet began
        self._head_bytes = 0
        self._window_s = 0.0
        self._window_bytes = 0
        self._unread: tuple[float, int] | None = None  # since when, and how many bytes wait

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._since_s = time.monotonic()
        self.guard.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._since_s is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._since_s is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.cut(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._since_s is None:
            self._since_s = time.monotonic()
            self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._since_s = None
        self._window_s, self._window_bytes = time.monotonic(), 0
        is_probe = httptools.parse_url(self.url).path in PROBES
        self.app = _too_many if self.for_probes and not is_probe else self._served
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._window_bytes += len(body)
        super().on_body(body)

    def resume_writing(self) -> None:
        self._unread = None  # it reads
        super().resume_writing()

    def asks_nothing_since(self, settled_s: float) -> bool:
        """Whether there is no request, or no whole head of one, since before `settled_s`."""
        if self._since_s is not None and self._since_s > settled_s:
            return False
        return self._since_s is not None or self.cycle is None or self.cycle.response_complete

    def check(self, now: float) -> None:
        """Cut this connection if its head is late, its body too slow, or its answer not read."""
        limits = self.guard.limits
        if self._is_unread(now):
            # The stream behind it ends as one whose client went away: aborted, billed to there.
            self.guard.discard(self)
            self.transport.abort()
            return
        if self._since_s is not None:
            if now - self._since_s > limits.head_s:
                self.cut(_HEAD_LATE)
            return
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return
        if self.flow.read_paused or cycle.waiting_for_100_continue:
            self._window_s, self._window_bytes = now, 0  # we do not read: not the client's fault
        elif now - self._window_s > limits.body_window_s:
            if self._window_bytes < limits.body_rate * (now - self._window_s):
                self.cut(_BODY_SLOW)
            self._window_s, self._window_bytes = now, 0

    def _is_unread(self, now: float) -> bool:
        """Whether what waits to be read is read too slowly. Looked at while nothing is added."""
        left = self.transport.get_write_buffer_size()
        still = self.flow.write_paused or self.cycle is None or self.cycle.response_complete
        if not left or not still:
            self._unread = None
            return False
        left += self._bytes_in_the_kernel()
        since, before = self._unread or (now, left)
        if now - since <= self.guard.limits.body_window_s:
            self._unread = since, before
            return False
        self._unread = now, left
        return before - left < self.guard.limits.body_rate * (now - since)

    def _bytes_in_the_kernel(self) -> int:
        """Written, and not taken by the other end. The kernel holds megabytes and says that there
        is room again only when a third of it is free: a slow reader must not look like none."""
        connection = self.transport.get_extra_info("socket")
        try:
            answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:  # closed, or not a kernel that tells
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def cut(self, error: ApiError) -> None:
        """Say why, where nothing has been said, and close. The place is free at once."""
        self.guard.discard(self)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()
            return
        self.transport.write(_plain_answer(error))
        self.transport.close()


@functools.cache
def _plain_answer(error: ApiError) -> bytes:
    body = json.dumps(error.body()).encode()
    head = (
        f"HTTP/1.1 {error.status} Closed\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    await response_of(_TOO_MANY)(scope, receive, send)


def _refusal(status: int, message: str, code: str) -> ApiError:
    return ApiError(message, status=status, type="invalid_request_error", code=code)


_TOO_MANY = UnavailableError(
    "Too many connections are open, from your address or in total. Close some, or try again later.",
    code="too_many_connections",
    headers={"connection": "close"},
)
_HEAD_LATE = _refusal(408, "The request headers did not arrive in time.", "request_timeout")
_BODY_SLOW = _refusal(408, "The request body arrived too slowly.", "request_timeout")
_HEAD_TOO_LARGE = _refusal(431, "The request headers are too large.", "headers_too_large")
