"""Strangers: connections to an engine's TCP port that have not proved a key yet. Only so many may
be open, and each for so long. Knows neither messages nor keys."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import recv_monitor_message

from tenora_engine.clocks import Clock, steady

STRANGERS_MAX = 32
"""Open at once; the oldest makes room. What ZeroMQ takes for a message of each is bounded too."""

HANDSHAKE_S = 5.0
"""Longer than a handshake takes on a slow line, or while a model is loaded."""

_LOOK_MS = 500
# What a server of CURVE sends before it knows the client: a greeting (64 bytes) and WELCOME (170);
# then ERROR (12 or more), or, to whom the doorman lets in, READY (67).
_PROVED_BYTES = 64 + 170 + 30
_BYTES_ACKED = 120  # where struct tcp_info has them, since Linux 4.1


@dataclass(frozen=True)
class _Stranger:
    connection: socket.socket  # by a descriptor of our own
    since_s: float


class Strangers:
    """Watches the connections that `router` accepts at a TCP port, in a thread of its own, until
    `close`. The proof is what the client has acknowledged of what is sent to friends alone: ZeroMQ
    tells that a handshake succeeded, but not of which connection."""

    def __init__(self, router: zmq.Socket[bytes], clock: Clock = steady) -> None:
        self._router = router
        self._clock = clock
        self._open: OrderedDict[int, _Stranger] = OrderedDict()  # by ZeroMQ's own descriptor
        self._monitor = router.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        )
        self._thread = threading.Thread(target=self._watch, name="tenora-strangers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Before the router is closed, by the thread that owns it."""
        self._router.disable_monitor()
        if self._thread.ident is not None:
            self._thread.join()
        self._monitor.close(linger=0)

    def _watch(self) -> None:
        try:
            while True:
                while self._monitor.poll(_LOOK_MS):
                    event = recv_monitor_message(self._monitor)
                    if event["event"] == zmq.EVENT_MONITOR_STOPPED:
                        return
                    self._end(event["value"])  # the number is free, or another connection's
                    if event["event"] == zmq.EVENT_ACCEPTED:
                        self._take(event["value"])
                self._look()
        finally:
            for each in list(self._open):
                self._leave(each)

    def _take(self, descriptor: int) -> None:
        """A descriptor of our own for the connection: ZeroMQ may close its one at any time, and
        the number then is another file's."""
        try:
            taken = socket.socket(fileno=os.dup(descriptor))
        except OSError:  # it has gone already
            return
        if taken.type != socket.SOCK_STREAM or taken.family == socket.AF_UNIX:
            taken.close()
            return
        self._open[descriptor] = _Stranger(taken, self._clock())
        if len(self._open) > STRANGERS_MAX:
            self._look()
        while len(self._open) > STRANGERS_MAX:
            self._end(next(iter(self._open)))

    def _look(self) -> None:
        """Forget who has proved to be a friend; end who takes too long."""
        latest_s = self._clock() - HANDSHAKE_S
        for descriptor, each in list(self._open.items()):
            if _is_proved(each.connection):
                self._leave(descriptor)
            elif each.since_s < latest_s:
                self._end(descriptor)

    def _end(self, descriptor: int) -> None:
        """Both ends hear of it, although there are two descriptors."""
        found = self._open.get(descriptor)
        if found is not None:
            with contextlib.suppress(OSError):  # it has left by itself
                found.connection.shutdown(socket.SHUT_RDWR)
            self._leave(descriptor)

    def _leave(self, descriptor: int) -> None:
        self._open.pop(descriptor).connection.close()


def can_watch() -> bool:
    """Whether this system tells what a client has acknowledged."""
    return hasattr(socket, "TCP_INFO")


def _is_proved(connection: socket.socket) -> bool:
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
    except OSError:
        return False
    if len(info) < _BYTES_ACKED + 8:
        return True  # an old kernel: nothing is known
    (acked,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    return bool(acked >= _PROVED_BYTES)
