"""The process in which tasks are done: confined, and forked anew for each, so that what a user's
text does, it does to itself alone. Run as `python -m` by `client`, with a socket as its standard
input."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tenora_engine.priority import stand_behind
from tenora_platform.apart.tasks import TASKS, Task
from tenora_platform.intake.confinement import confine, limit

FDS = 2
"""Come with each request: a file with the question, and where the answer goes."""

NICE = 5  # users' texts wait for tokens, a little: it leads a session of its own

Answer = Callable[[bytes], bytes]


def serve(owner: socket.socket, answers: list[Answer]) -> None:
    """Until the owner is gone. Nobody waits for a task here: each ends by itself, or by the limits
    on what it may take."""
    while True:
        message, fds, _, _ = socket.recv_fds(owner, 1, FDS)
        if not message:
            return
        if os.fork() == 0:
            _do(owner, TASKS[message[0]], answers[message[0]], fds)
        for fd in fds:
            os.close(fd)


def _do(owner: socket.socket, task: Task, answer: Answer, fds: list[int]) -> NoReturn:
    """In the forked process: whatever happens, it ends here."""
    status = 1
    try:
        limit(task.memory_bytes, task.cpu_s)
        os.nice(task.nice)
        owner.close()
        with os.fdopen(fds[0], "rb") as file:
            question = file.read()
        with os.fdopen(fds[1], "wb") as out:
            out.write(answer(question))
        status = 0
    except MemoryError:
        pass  # as large as it was made to be
    except BaseException as error:  # without its words, which may be a user's
        traceback.print_tb(error.__traceback__)
        print(f"{task.module}: {type(error).__name__}", file=sys.stderr)
    finally:
        os._exit(status)


def main() -> None:
    stand_behind(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is our owner's affair
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what has ended is gone
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text("tenora-apart")
    modules: list[Any] = [importlib.import_module(task.module) for task in TASKS]
    for module in modules:
        module.warm_up()
    os.environ.clear()
    owner = socket.socket(fileno=0)
    with contextlib.suppress(OSError):
        confine()
        owner.sendall(b"1")
        serve(owner, [module.answer for module in modules])


if __name__ == "__main__":
    main()
