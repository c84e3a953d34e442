"""EngineLink: a client's DEALER socket on its asyncio loop, without a task or a future for each
message (zmq.asyncio costs several). Knows no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from tenora_engine.transport.address import QUEUED_MESSAGES_MAX, EngineAddress

_MESSAGES_A_TURN = 100  # of the loop, which others wait for
_AGAIN_S = 0.2  # until what failed is tried again
_LINGER_MS = 200
_REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class EngineLink:
    """Connects, and again by itself, to the engine at `address`, whenever there is one.

    On the loop it is made on: `take` gets each message, `changed` whether there is a connection
    (another one than before each time, which the engine does not know), and `failed` whatever
    `take` or the socket raises; after that messages are read on.
    """

    def __init__(
        self,
        address: EngineAddress,
        take: Callable[[bytes], None],
        changed: Callable[[bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Raises InsecureEndpointError."""
        self._take, self._changed, self._failed = take, changed, failed
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(QUEUED_MESSAGES_MAX)
        self._socket.setsockopt(zmq.LINGER, _LINGER_MS)
        # Not IMMEDIATE: then what has come and is not read yet is lost with the connection.
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSALS
        )
        self._connected = False
        self.refused = False  # the last attempt to connect: another's keys, or no engine at all
        self._again: asyncio.Handle | None = None  # when more will be read without a signal
        self._broken = False  # nothing is read until then
        try:
            address.connect(self._socket)
        except BaseException:
            self._close_sockets()
            raise
        # A descriptor signals what comes after its socket has been found empty: look once.
        self._loop.add_reader(_descriptor(self._monitor), self._watch)
        self._loop.add_reader(_descriptor(self._socket), self._read)
        self._first = self._loop.call_soon(self._look)

    @property
    def connected(self) -> bool:
        return self._connected

    def send(self, data: bytes) -> bool:
        """Never waits. False when the engine is connected and has long not read. When it is away
        the message is dropped; `changed` has told of that, or soon will."""
        if not self._connected:
            return True  # it would reach the next engine
        try:
            self._socket.send(data, zmq.NOBLOCK)
            if self._again is None and _readable(self._socket):
                # Sending may have consumed the signal of what has come.
                self._again = self._loop.call_soon(self._read)
        except zmq.Again:
            return False
        except Exception as error:
            self._fail(error)
        return True

    def close(self) -> None:
        self._loop.remove_reader(_descriptor(self._monitor))
        self._loop.remove_reader(_descriptor(self._socket))
        if self._again is not None:
            self._again.cancel()
        self._first.cancel()
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def _look(self) -> None:
        self._watch()
        self._read()

    def _go_on(self) -> None:
        self._broken = False
        self._loop.add_reader(_descriptor(self._socket), self._read)
        self._read()

    def _read(self) -> None:
        """Read all there is: the descriptor is signalled once, when the first has come."""
        self._again = None
        if not self._read_some(_MESSAGES_A_TURN) and self._again is None:
            self._again = self._loop.call_soon(self._read)

    def _read_some(self, most: int) -> bool:
        """Whether no more is there, or it has failed."""
        try:
            for _ in range(most):
                if not _readable(self._socket):
                    return True
                self._take(self._socket.recv(zmq.NOBLOCK))
        except Exception as error:
            self._fail(error)
            return True
        return False

    def _fail(self, error: Exception) -> None:
        if self._broken:
            return
        self._broken = True
        self._loop.remove_reader(_descriptor(self._socket))  # it would call us without end
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(_AGAIN_S, self._go_on)
        self._failed(error)

    def _watch(self) -> None:
        """Connections begin and end. What came through one is read before its end is told."""
        while _readable(self._monitor):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected, self.refused = True, False
                self._changed(True)
            elif not self._connected:  # it ended before anything could be said
                self.refused = True
            elif event & zmq.EVENT_DISCONNECTED:
                self._connected = False
                self._read_some(QUEUED_MESSAGES_MAX)
                self._changed(False)


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    found = socket.getsockopt(zmq.FD)
    assert isinstance(found, int)
    return found


def _readable(socket: zmq.Socket[bytes]) -> bool:
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)
