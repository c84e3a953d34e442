"""Renderer: has chat templates that came with adapters rendered in processes apart, and keeps what
compiling them gave, unread, for the next process. Knows no tenant and no adapter."""

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tenora_engine.errors import InvalidRequestError
from tenora_engine.fair_cache import FairCache
from tenora_platform.templates import process
from tenora_platform.templates.process import Answer, Question

TIME_S = 5.0
"""For one rendering on a busy machine; its own time is limited to `process.CPU_S`."""
_START_S = 60.0
_ANSWER_BYTES_MAX = 16 * 1024**2
_PARAM = "messages"
COMPILED_KEPT, COMPILED_BYTES_MAX = 64, 512 * 1024
"""Templates whose compiled code is kept; larger code is compiled anew each time."""


class Renderer:
    """The process starts with the first rendering, and again should it die; `close` ends it. Safe
    to use from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._compiled: FairCache[str, bytes] = FairCache(COMPILED_KEPT)

    def render(self, question: Question, owner: str | None = None, tenant_id: str = "") -> str:
        """Blocks. `owner` is whose template it is, and of which tenant: what it compiled to is
        given to processes for the same owner alone, because it could be anything. Raises
        InvalidRequestError in the template's words, and where it takes more than it may."""
        known = self._known(owner)
        answer = self._answer(msgspec.structs.replace(question, compiled=known))
        if answer.text is None:
            raise InvalidRequestError(
                f"the chat template could not be rendered: {answer.error}", _PARAM
            )
        if known is None and owner is not None and answer.compiled is not None:
            self._keep(owner, tenant_id, answer.compiled)
        return answer.text

    def _known(self, owner: str | None) -> bytes | None:
        with self._lock:
            return None if owner is None else self._compiled.use(owner)

    def _keep(self, owner: str, tenant_id: str, compiled: bytes) -> None:
        if len(compiled) <= COMPILED_BYTES_MAX:
            with self._lock:
                self._compiled.put(owner, compiled, tenant_id)

    def _answer(self, question: Question) -> Answer:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb", buffering=0) as answers:
            with os.fdopen(writer, "wb"), tempfile.TemporaryFile() as asked:
                asked.write(msgspec.msgpack.encode(question))
                asked.seek(0)
                self._ask([asked.fileno(), writer])
            raw = _read(answers.fileno())
        try:
            return msgspec.msgpack.decode(raw, type=Answer)
        except msgspec.DecodeError:
            return Answer(error="it takes more time or memory than a template may use")

    def _ask(self, fds: Sequence[int]) -> None:
        with self._lock:
            for _ in range(2):  # once more where the process has died since
                if self._socket is None:
                    self._start()
                assert self._socket is not None  # started
                try:
                    socket.send_fds(self._socket, [b"1"], fds)
                    return
                except OSError:
                    self._end()
        raise InvalidRequestError("chat templates cannot be rendered right now; try again", _PARAM)

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


def _read(fd: int) -> bytes:
    """All that is written until the other end closes, within the limits; else nothing."""
    until_s = time.monotonic() + TIME_S
    data = bytearray()
    while len(data) <= _ANSWER_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            return b""
        piece = os.read(fd, 1 << 16)
        if not piece:
            return bytes(data)
        data += piece
    return b""


@dataclass(frozen=True)
class AdapterTemplate:
    """A template that came with an adapter, in the place of the base model's own. `version_id`: of
    which, where it is a version's by now."""

    renderer: Renderer
    source: str
    special_tokens: Mapping[str, str]
    version_id: str | None = None
    tenant_id: str = ""
    param: str = _PARAM  # that an error names

    def render(self, messages: Sequence[Mapping[str, Any]], /, **arguments: Any) -> str:
        """As ChatTemplate's."""
        return self._rendered(messages, arguments, is_open=False)

    def render_open(self, messages: Sequence[Mapping[str, Any]], /, **arguments: Any) -> str:
        """As ChatTemplate's."""
        return self._rendered(messages, arguments, is_open=True)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        *,
        is_open: bool,
    ) -> str:
        plain = [dict(message) for message in messages]
        tokens = dict(self.special_tokens)
        question = Question(self.source, tokens, plain, dict(arguments), is_open)
        try:
            return self.renderer.render(question, self.version_id, self.tenant_id)
        except InvalidRequestError as error:
            error.param = self.param
            raise
