"""Pulse: whether an engine answers, asked by a socket of its own. For whoever holds an engine up
and needs no more of it."""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenora_engine.transport import messages as m
from tenora_engine.transport.address import EngineAddress
from tenora_engine.transport.wire import PING_S, decode_from_engine, encode


class Pulse:
    """One DEALER socket that says Hello and Ping. Not safe to share between threads."""

    def __init__(self, address: EngineAddress) -> None:
        """Raises InsecureEndpointError."""
        self._hello = encode(m.Hello(address.token))
        self._known = False
        self._heard_s = self._asked_s = time.monotonic()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing waits for an engine that is away
        address.connect(self._socket)

    def silent_s(self) -> float:
        """Ask, and say for how many seconds nothing has come. To be called every PING_S; a caller
        who stood still begins to wait anew, for the answers of meanwhile have not been read."""
        now = time.monotonic()
        stood_still, self._asked_s = now - self._asked_s > 2 * PING_S, now
        if self._read() or stood_still:
            self._heard_s = now
        with contextlib.suppress(zmq.Again):
            self._socket.send(encode(m.Ping()) if self._known else self._hello, zmq.NOBLOCK)
        return now - self._heard_s

    def _read(self) -> bool:
        """Whether anything has come."""
        heard = False
        with contextlib.suppress(zmq.Again):
            while True:
                data = self._socket.recv(zmq.NOBLOCK)
                heard = True
                with contextlib.suppress(msgspec.MsgspecError):
                    self._known = not isinstance(decode_from_engine(data), m.Unknown)
        return heard

    def close(self) -> None:
        self._socket.close()
        self._context.term()
