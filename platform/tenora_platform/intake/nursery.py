"""The process that checks are forked from: small, warm and confined, so that each check begins in a
process of its own within a millisecond and leaves nothing behind. Run as `python -m` by `checker`,
with a socket as its standard input. Knows what it runs by name only."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
from pydantic import TypeAdapter

from tenora_engine.config import LORA_MODULES, ModelInfo
from tenora_engine.printable import write_traceback
from tenora_engine.priority import stand_behind
from tenora_platform.intake.check import CheckedAdapter, check_header
from tenora_platform.intake.confinement import Confinement, confine, limit
from tenora_platform.intake.draft_layer import check_draft_layer
from tenora_platform.intake.report import ValidationReport

OUT_OF_MEMORY, TROUBLE_READING = 3, 4
"""Exit statuses of a check that knows why it ends."""
CHECKED: TypeAdapter[CheckedAdapter] = TypeAdapter(CheckedAdapter)
NICE = 10  # a check waits for requests, not they for it
FDS, FDS_MAX = 3, 32
"""With each Limits come: the weights, a file with the Question, where the answer goes.
A nursery has no numbers beyond the second."""

_LATE = (
    *("base64", "bisect", "copy", "decimal", "difflib", "fractions", "heapq", "locale", "random"),
    *("statistics", "string", "struct", "textwrap", "unicodedata", "encodings.idna"),
    *("encodings.latin_1", "encodings.utf_16", "encodings.utf_8_sig", "traceback", "linecache"),
)
Check = Callable[[bytes, BinaryIO, ModelInfo, int], CheckedAdapter]


class Limits(msgspec.Struct, frozen=True):
    """Of one check."""

    memory_bytes: int
    cpu_s: int
    wall_s: float


class Question(msgspec.Struct, frozen=True):
    """What is checked, beside the weights."""

    config: bytes | None  # None: what comes is a draft layer
    model: ModelInfo
    max_rank: int
    file_bytes: int | None = None  # of the weights, of which the header alone comes


class Ended(msgspec.Struct, frozen=True):
    """How a check's process ended: its exit status, or the signal's number below zero."""

    status: int
    timed_out: bool
    cpu_s: float
    peak_bytes: int


class Started(msgspec.Struct, frozen=True):
    """What a nursery says first."""

    confinement: Confinement


class _OwnerGoneError(Exception):
    """The other end of the socket is closed."""


def serve(owner: socket.socket, check: Check) -> None:
    """One check after the other, until the owner is gone."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        message, fds, _, _ = socket.recv_fds(owner, 1024, FDS)
        if not message:
            return
        limits = msgspec.json.decode(message, type=Limits)
        pid = os.fork()
        if pid == 0:
            _check(check, limits, fds)
        for fd in fds:
            os.close(fd)
        try:
            ended = _watch(pid, limits.wall_s, owner, wake)
        except _OwnerGoneError:
            return
        owner.sendall(msgspec.json.encode(ended) + b"\n")


def _watch(pid: int, wall_s: float, owner: socket.socket, wake: socket.socket) -> Ended:
    """Wait for the check's process, so long and no longer. Raises _OwnerGoneError."""
    until_s, timed_out = time.monotonic() + wall_s, False
    poll = select.poll()
    for each in (owner, wake):
        poll.register(each, select.POLLIN)
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return Ended(
                status=os.waitstatus_to_exitcode(status),
                timed_out=timed_out,
                cpu_s=usage.ru_utime + usage.ru_stime,
                peak_bytes=usage.ru_maxrss * 1024,
            )
        left_s = None if timed_out else max(0.0, until_s - time.monotonic())
        ready = [fd for fd, _ in poll.poll(None if left_s is None else 1000 * left_s)]
        if owner.fileno() in ready:  # it sends nothing while it waits: this is its end
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise _OwnerGoneError
        if wake.fileno() in ready:
            wake.recv(4096)
        elif not timed_out:
            timed_out = True
            os.kill(pid, signal.SIGKILL)


def _check(check: Check, limits: Limits, fds: list[int]) -> NoReturn:
    """In the forked process: whatever happens, it ends here."""
    status = 1
    weights_fd, question_fd, answer = fds
    try:
        signal.set_wakeup_fd(-1)
        limit(limits.memory_bytes, limits.cpu_s)
        for other in {*range(FDS_MAX)} - {1, 2, *fds}:  # the owner's socket is the nursery's
            with contextlib.suppress(OSError):
                os.close(other)
        with os.fdopen(question_fd, "rb") as file:
            question = msgspec.msgpack.decode(file.read(), type=Question)
        with os.fdopen(weights_fd, "rb") as weights:
            checked = _examined(check, question, weights)
        with os.fdopen(answer, "wb") as out:
            out.write(CHECKED.dump_json(checked))
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    except (OSError, ImportError):  # what was not imported before cannot be any more: ours to mend
        status = TROUBLE_READING
        write_traceback()
    except BaseException:
        write_traceback()
    finally:
        os._exit(status)


def _examined(check: Check, question: Question, file: BinaryIO) -> CheckedAdapter:
    if question.config is not None and question.file_bytes is not None:
        return check_header(
            question.config, file, question.file_bytes, question.model, question.max_rank
        )
    if question.config is not None:
        return check(question.config, file, question.model, question.max_rank)
    report = ValidationReport(problems=check_draft_layer(file, question.model))
    return CheckedAdapter(report, None, None, None, (), None)


def _warm_up(check: Check) -> None:
    """Checks of small adapters, so that all is imported before no file can be read, what the
    standard library and numpy import late included."""
    for module in _LATE:
        importlib.import_module(module)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    header = {
        name.format("A"): {"dtype": "F16", "shape": [1, 2], "data_offsets": [0, 4]},
        name.format("B"): {"dtype": "F16", "shape": [2, 1], "data_offsets": [4, 8]},
    }
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1}
    raw = msgspec.json.encode(config | {"target_modules": ["q_proj"], "bias": "none"})
    model = ModelInfo(
        id="warm",
        architecture="none",
        num_layers=1,
        hidden=2,
        intermediate=2,
        heads=1,
        kv_heads=1,
        head_dim=2,
        vocab=2,
        context_tokens=2,
        dtype="float32",
        weight_bytes=8,
        modules=dict.fromkeys(LORA_MODULES, (2, 2)),
        eos_token_ids=(0,),
    )
    head = msgspec.json.encode(header)
    ones, infinities = bytes([0, 60]) * 4, bytes([0, 124]) * 4
    missing = raw.replace(b"q_proj", b"v_proj")
    cases = ((raw, ones), (raw, infinities), (raw, b""), (missing, ones), (b"", ones))
    for given, data in cases:
        with tempfile.TemporaryFile() as file:
            file.write(len(head).to_bytes(8, "little") + head + data)
            file.flush()
            CHECKED.dump_json(check(given, file, model, 8))
            check_draft_layer(file, model)


def main() -> None:
    stand_behind(NICE)
    module, _, function = sys.argv[1].partition(":")
    check: Check = getattr(importlib.import_module(module), function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is our owner's affair
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text("tenora-checks")
    _warm_up(check)
    os.environ.clear()
    owner = socket.socket(fileno=0)
    owner.sendall(msgspec.json.encode(Started(confine())) + b"\n")
    serve(owner, check)


if __name__ == "__main__":
    main()
