"""Apart: has tasks done in processes apart, within their bounds. Knows no tenant."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from tenora_platform.apart import process
from tenora_platform.apart.tasks import TASKS, Task

ANSWER_BYTES_MAX = 16 * 1024**2
_START_S = 60.0


class ApartUnavailableError(Exception):
    """No process could be had: nothing is known of the question."""


class Apart:
    """The process starts with the first task, and again should it die; `close` ends it. Safe to use
    from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, task: Task, question: bytes) -> bytes:
        """The answer; b"" where it took more time or memory than it may, or crashed. Blocks. Raises
        ApartUnavailableError."""
        try:
            return self._ask(task, question)
        except OSError as error:  # no descriptor, no process or no room for the question
            raise ApartUnavailableError(f"no task can be given away: {error}") from error

    def _ask(self, task: Task, question: bytes) -> bytes:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0) as answers:
            with os.fdopen(writer, "wb"), tempfile.TemporaryFile() as asked:
                asked.write(question)
                asked.seek(0)
                self._send(TASKS.index(task), [asked.fileno(), writer])
            return _read(answers.fileno(), task.wall_s)

    def _send(self, task: int, fds: Sequence[int]) -> None:
        with self._lock:
            for _ in range(2):  # once more where the process has died since
                if self._socket is None:
                    self._start()
                assert self._socket is not None  # started
                try:
                    socket.send_fds(self._socket, [bytes([task])], fds)
                    return
                except OSError:
                    self._end()
        raise ApartUnavailableError("the process for work on users' texts does not start")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # Nothing of our environment: it holds secrets.
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", process.__name__],
                stdin=theirs.fileno(),
                stdout=2,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        ours.settimeout(_START_S)
        self._socket = ours
        with contextlib.suppress(OSError):
            ours.recv(1)  # it is confined

    def _end(self) -> None:
        if self._process is not None and self._socket is not None:
            self._process.kill()
            self._process.wait()
            self._socket.close()
        self._process = self._socket = None

    def close(self) -> None:
        with self._lock:
            self._end()


def _read(fd: int, most_s: float) -> bytes:
    """All that is written until the other end closes, within the limits; else nothing."""
    until_s = time.monotonic() + most_s
    poll = select.poll()  # `select.select` takes no descriptor of 1024 or more
    poll.register(fd, select.POLLIN)
    data = bytearray()
    while len(data) <= ANSWER_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            return b""
        piece = os.read(fd, 1 << 16)
        if not piece:
            return bytes(data)
        data += piece
    return b""
