"""The process in which adapters' chat templates are rendered: confined, and forked anew for every
rendering, so that what a tenant's template does, it does to itself alone. Run as `python -m` by
`renderer`, with a socket as its standard input."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.printable import write_traceback
from tenora_engine.text.chat_template import ChatTemplate
from tenora_platform.intake.confinement import confine, limit

MEMORY_BYTES = 512 * 1024**2
"""Of address space; a rendering takes some 60 MiB of it."""
CPU_S = 1
FDS = 2
"""Come with each request: a file with the Question, and where the Answer goes."""


class Question(msgspec.Struct, frozen=True):
    """What is rendered. `is_open`: up to the end of the last message, which is left open.
    `compiled` is what an Answer said of the same source."""

    source: str
    special_tokens: dict[str, str]
    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    is_open: bool
    compiled: bytes | None = None


class Answer(msgspec.Struct, frozen=True):
    """The text, or why there is none; and the compiled source, unless the Question had it."""

    text: str | None = None
    error: str | None = None
    compiled: bytes | None = None


def answer(question: Question) -> Answer:
    """Renders in this process."""
    try:
        known = None if question.compiled is None else marshal.loads(question.compiled)
        template = ChatTemplate(question.source, question.special_tokens, known)
        compiled = marshal.dumps(template.code) if known is None else None
        render = template.render_open if question.is_open else template.render
        return Answer(text=render(question.messages, **question.arguments), compiled=compiled)
    except EngineError as error:
        return Answer(error=str(error))
    except (MemoryError, RecursionError) as error:
        return Answer(
            error=(f"it needs more memory or recursion than allowed ({type(error).__name__})")
        )


def serve(owner: socket.socket) -> None:
    """Until the owner is gone. Nobody waits for a rendering here: each ends by itself, or by the
    limits on what it may take."""
    while True:
        message, fds, _, _ = socket.recv_fds(owner, 1, FDS)
        if not message:
            return
        if os.fork() == 0:
            _render(owner, fds)
        for fd in fds:
            os.close(fd)


def _render(owner: socket.socket, fds: list[int]) -> NoReturn:
    """In the forked process: whatever happens, it ends here."""
    status = 1
    try:
        limit(MEMORY_BYTES, CPU_S)
        owner.close()
        with os.fdopen(fds[0], "rb") as file:
            question = msgspec.msgpack.decode(file.read(), type=Question)
        with os.fdopen(fds[1], "wb") as out:
            out.write(msgspec.msgpack.encode(answer(question)))
        status = 0
    except BaseException:
        write_traceback()
    finally:
        os._exit(status)


def _warm_up() -> None:
    """One rendering of everything, so that all is imported before no file can be read."""
    source = (
        "{% for m in messages %}{{ m.content | trim | tojson }}{{ strftime_now('%Y') }}{% endfor %}"
    )
    for each in (source, "{{", "{{ raise_exception('no') }}"):
        answer(Question(each, {}, [{"role": "user", "content": "Hi"}], {"tools": None}, False))
    answer(Question("{{ messages[0].content }}", {}, [{"content": "Hi"}], {}, True))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is our owner's affair
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what has ended is gone
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text("tenora-chats")
    _warm_up()
    os.environ.clear()
    owner = socket.socket(fileno=0)
    with contextlib.suppress(OSError):
        confine()
        owner.sendall(b"1")
        serve(owner)


if __name__ == "__main__":
    main()
