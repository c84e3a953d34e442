"""Checks that end as no check should, for the process that runs them (see `intake.checker`)."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

from tenora_engine.config import ModelInfo
from tenora_platform.intake.check import CheckedAdapter, check_open_adapter
from tenora_platform.intake.confinement import network_is_reachable
from tenora_platform.intake.report import Problem, ValidationReport


def chosen(config: bytes, weights: BinaryIO, model: ModelInfo, max_rank: int) -> CheckedAdapter:
    """The check that the config names, else the true one; so that one process has both."""
    kind = _KINDS.get(config)
    if kind is None:
        return check_open_adapter(config, weights, model, max_rank)
    return said(kind())


def said(text: object) -> CheckedAdapter:
    problem = Problem(field="weights", code="said", message=str(text))
    return CheckedAdapter(ValidationReport(problems=[problem]), None, None, None, (), None)


def bomb() -> int:
    return sum(len(bytes(2**24)) for _ in iter(lambda: _HELD.append(bytes(2**24)), 0))


_HELD: list[bytes] = []


def spin() -> NoReturn:
    while True:
        pass


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raised() -> NoReturn:
    raise RuntimeError("a bug of ours")


def unreadable() -> NoReturn:
    raise OSError("the disk is broken")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def change() -> None:
    """What is checked, under the hands of whoever will publish it."""
    for fd in range(3, 16):
        with contextlib.suppress(OSError, ValueError), mmap.mmap(fd, 8) as file:
            file[:8] = bytes(8)


def garbage() -> NoReturn:
    os.closerange(0, 3)
    for fd in range(3, 16):
        try:
            os.write(fd, b"{" * 100)
        except OSError:
            continue
    os._exit(0)


def flood() -> NoReturn:
    while True:
        for fd in range(3, 16):
            try:
                os.write(fd, b"x" * 65536)
            except BrokenPipeError:
                os._exit(9)
            except OSError:
                continue


def reach() -> dict[str, object]:
    """What is within reach of a check."""
    found: dict[str, object] = {"network": network_is_reachable(), "environment": dict(os.environ)}
    acts: dict[str, Callable[[], object]] = {
        "passwd": lambda: Path("/etc/passwd").read_text(),
        "list": lambda: os.listdir("/"),
        "write": lambda: Path("/tmp/tenora-check-wrote-this").write_text("x"),
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "tcp": lambda: socket.socket().connect(("127.0.0.1", 1)),
    }
    for name, act in acts.items():
        try:
            act()
            found[name] = "done"
        except Exception as error:
            found[name] = type(error).__name__
    found["core"] = resource.getrlimit(resource.RLIMIT_CORE)
    found["uid"] = os.geteuid()
    return found


_KINDS: dict[bytes, Callable[[], object]] = {
    b"bomb": bomb,
    b"spin": spin,
    b"sleep": lambda: time.sleep(600),
    b"crash": crash,
    b"abort": os.abort,
    b"raised": raised,
    b"unreadable": unreadable,
    b"killed": killed,
    b"terminated": terminated,
    b"change": change,
    b"garbage": garbage,
    b"flood": flood,
    b"reach": reach,
}
