"""Clients: who an engine serves, until when each is taken to live, and how much of what it was sent
it has not read. Knows no socket and no request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tenora_engine.clocks import Clock, steady
from tenora_engine.transport import wire

UNREAD_MAX_BYTES = 128 * 2**20
"""What is kept for a client that does not read: minutes of tokens of a full batch. One that has
more is dropped, as one whose lease is over."""

_STANDSTILL_S = 2.0  # no turn of a server takes so long, unless its process was stopped


@dataclass
class _Client:
    heard_s: float
    sent_bytes: int = 0  # since it was greeted
    read_bytes: int = 0

    @property
    def unread_bytes(self) -> int:
        return max(self.sent_bytes - self.read_bytes, 0)


class Clients:
    """Of one server, by identity. `turn` must be called at least every second."""

    def __init__(self, clock: Clock = steady) -> None:
        self._clock = clock
        self._all: dict[bytes, _Client] = {}
        self._turn_s = clock()

    def __contains__(self, client: bytes) -> bool:
        return client in self._all

    def __iter__(self) -> Iterator[bytes]:
        """May be dropped meanwhile."""
        return iter(list(self._all))

    def greet(self, client: bytes) -> None:
        """It begins, or begins anew: what it was sent before, it counts no more."""
        self._all[client] = _Client(self._clock())

    def drop(self, client: bytes) -> None:
        self._all.pop(client, None)

    def hear(self, client: bytes) -> None:
        """It lives; one that is not known is nobody's concern."""
        if client in self._all:
            self._all[client].heard_s = self._clock()

    def note_read(self, client: bytes, num_bytes: int | None) -> None:
        """So much it has read since it was greeted; None: all of it, says who does not count."""
        known = self._all[client]
        known.read_bytes = known.sent_bytes if num_bytes is None else num_bytes

    def try_send(self, client: bytes, num_bytes: int) -> bool:
        """Whether so much more may wait for it; then it is counted."""
        known = self._all[client]
        if known.unread_bytes + num_bytes > UNREAD_MAX_BYTES:
            return False
        known.sent_bytes += num_bytes
        return True

    def turn(self) -> list[bytes]:
        """Those whose leases are over. While the server itself stood still no lease ran: what its
        clients said meanwhile is not read."""
        now_s = self._clock()
        stood_still_s, self._turn_s = now_s - self._turn_s, now_s
        if stood_still_s > _STANDSTILL_S:
            for known in self._all.values():
                known.heard_s += stood_still_s
        least_s = now_s - wire.CLIENT_LEASE_S
        return [client for client, known in self._all.items() if known.heard_s < least_s]
