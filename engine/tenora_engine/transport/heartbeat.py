"""Heartbeat: says that a client lives, on a thread and by a socket of its own, while the client's
asyncio loop may be at something that takes long."""

from __future__ import annotations

import contextlib
import threading

import zmq

from tenora_engine.clocks import steady
from tenora_engine.transport import messages as m
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.wire import PING_S, encode

VOUCHED_S = 60.0
"""A loop that stands still for longer may never go on, and the thread says nothing for it any
more."""

_QUEUED_MAX = 4  # beats, for an engine that does not read


class Heartbeat:
    """`vouch` and `close` are called by the thread that has made it."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._vouched = (b"", 0.0)  # for whom, and until when
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenora-heartbeat", daemon=True)
        self._thread.start()

    def vouch(self, client: bytes) -> None:
        """The loop has just run; `client` is what the engine calls it, b"" while it does not know
        it."""
        self._vouched = client, steady() + VOUCHED_S

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.set_hwm(_QUEUED_MAX)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits for an engine that is away
            self._address.connect(socket)
            while not self._closed.wait(PING_S):
                client, until_s = self._vouched
                if client and steady() < until_s:
                    with contextlib.suppress(zmq.ZMQError):  # the next may come through
                        socket.send(encode(m.Beat(self._address.token, client)), zmq.NOBLOCK)
