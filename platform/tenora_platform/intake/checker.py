"""Checker: has adapters examined in processes apart, with limits on what they may take. What a
check does to itself rejects its adapter by name; what is done to it from outside says nothing of
the adapter. Knows no tenant, no store and no rows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from pydantic import ValidationError

from tenora_engine.config import ModelInfo
from tenora_platform.intake import nursery
from tenora_platform.intake.check import CheckedAdapter
from tenora_platform.intake.confinement import Confinement
from tenora_platform.intake.draft_layer import of_the_layer
from tenora_platform.intake.nursery import CHECKED, Ended, Limits, Question, Started
from tenora_platform.intake.report import Problem, ValidationReport

CHECK = "tenora_platform.intake.check:check_open_adapter"
MEMORY_BYTES = 1024**3
"""Of address space. A check takes about 300 MiB of it, of which 60 are its own."""
_CPU_S, _CPU_BYTES_PER_S = 30, 20_000_000
_WALL_S, _WALL_BYTES_PER_S = 300.0, 2_000_000
"""A check goes over 300 MB a second where nothing else runs, and runs behind all else."""
HEADER_LIMITS = Limits(MEMORY_BYTES, cpu_s=5, wall_s=20.0)
"""Where the weights' header alone is looked at: the patterns of a config may take two seconds."""
_MARGIN_S = 30.0  # for the nursery to say that a check has ended
_START_S = 60.0
_ANSWER_BYTES_MAX = 8 * 1024**2
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class CheckLostError(Exception):
    """The check's process was ended from outside, or nobody knows how: the machine, the operator,
    the system's own want of memory. Nothing is known of the adapter."""


class CheckReadingError(OSError):
    """The upload could not be read; the process has said why on standard error."""


def limits_of(file_bytes: int) -> Limits:
    """For weights of this size."""
    return Limits(
        memory_bytes=MEMORY_BYTES,
        cpu_s=_CPU_S + file_bytes // _CPU_BYTES_PER_S,
        wall_s=_WALL_S + file_bytes / _WALL_BYTES_PER_S,
    )


class Checker:
    """One check at a time. The process that they are forked from starts with the first, and again
    should it die; `close` ends it. `check` names what is run, `module:function`."""

    def __init__(
        self,
        check: str = CHECK,
        limits: Limits | None = None,
    ) -> None:
        self._check = check
        self._limits = limits
        self._turn = asyncio.Lock()
        self._nursery: _Nursery | None = None
        self.last: Ended | None = None  # how the last check's process ended

    async def check(
        self, config: bytes, weights: BinaryIO, model: ModelInfo, max_rank: int
    ) -> CheckedAdapter:
        """`check_open_adapter`, elsewhere. Raises CheckLostError, CheckReadingError."""
        return await self._ask(weights, Question(config, model, max_rank))

    async def check_draft_layer(self, file: BinaryIO, model: ModelInfo) -> ValidationReport:
        """`intake.draft_layer.check_draft_layer`, elsewhere. Raises as `check`."""
        report = (await self._ask(file, Question(None, model, 0))).report
        return ValidationReport(problems=[of_the_layer(each) for each in report.problems])

    async def check_header(
        self, config: bytes, header: bytes, file_bytes: int, model: ModelInfo, max_rank: int
    ) -> CheckedAdapter:
        """`intake.check.check_header`, elsewhere. Raises as `check`."""
        with tempfile.TemporaryFile() as file:
            file.write(header)
            file.flush()
            question = Question(config, model, max_rank, file_bytes)
            return await self._ask(file, question, HEADER_LIMITS)

    async def _ask(
        self, file: BinaryIO, asked: Question, limits: Limits | None = None
    ) -> CheckedAdapter:
        limits = limits or self._limits or limits_of(os.fstat(file.fileno()).st_size)
        question = msgspec.msgpack.encode(asked)
        async with self._turn:
            nursery = self._alive()
            try:
                answer, ended = await asyncio.to_thread(nursery.ask, limits, question, file)
            except BaseException:
                self._nursery = None
                nursery.end()  # its check with it, if one runs still
                raise
        self.last = ended
        return _verdict(answer, ended, limits)

    def close(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.end()

    @property
    def pid(self) -> int | None:
        """Of the process that checks are forked from."""
        return None if self._nursery is None else self._nursery.pid

    def _alive(self) -> _Nursery:
        if self._nursery is None or not self._nursery.alive:
            self.close()
            self._nursery = _Nursery(self._check)
        return self._nursery


def confinement() -> Confinement:
    """What the system takes from checks here. Raises CheckLostError."""
    nursery = _Nursery(CHECK)
    try:
        return nursery.confinement()
    finally:
        nursery.end()


class _Nursery:
    """The owner's end. Its methods block, but `end`, which ends what another thread waits for."""

    def __init__(self, check: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_START_S)
        # Nothing of our environment: it holds secrets.
        environment = dict.fromkeys(_THREADS, "1") | {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, check],
                stdin=theirs.fileno(),
                stdout=2,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._ending = threading.Lock()
        self._started: Started | None = None

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def confinement(self) -> Confinement:
        """Once it has started. Raises CheckLostError."""
        if self._started is None:
            self._started = msgspec.json.decode(self._line(), type=Started)
        return self._started.confinement

    def ask(self, limits: Limits, question: bytes, weights: BinaryIO) -> tuple[bytes, Ended]:
        """What the check wrote, and how it ended. Raises CheckLostError."""
        self.confinement()
        self._socket.settimeout(limits.wall_s + _MARGIN_S)
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as answers, tempfile.TemporaryFile() as asked:
            asked.write(question)
            asked.seek(0)
            with _to_read(weights) as readable, os.fdopen(writer, "wb"):
                fds = [readable, asked.fileno(), writer]
                try:
                    socket.send_fds(self._socket, [msgspec.json.encode(limits)], fds)
                except OSError as error:
                    raise CheckLostError(f"the check could not be started: {error}") from error
            answer = answers.read(_ANSWER_BYTES_MAX)
            answers.close()  # one that has more to say ends by that
            return answer, msgspec.json.decode(self._line(), type=Ended)

    def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                piece = self._socket.recv(4096)
            except OSError as error:
                raise CheckLostError(
                    f"the process that runs checks does not answer: {error}"
                ) from error
            if not piece:
                raise CheckLostError("the process that runs checks has ended")
            line += piece
        return bytes(line)

    def end(self) -> None:
        with self._ending:
            self._process.kill()  # and with it, by the signal of a parent's death, its check
            self._process.wait()
            self._socket.close()


@contextlib.contextmanager
def _to_read(file: BinaryIO) -> Iterator[int]:
    """The same file at its beginning, where the system can to be read only."""
    again = Path(f"/proc/self/fd/{file.fileno()}")
    if not again.exists():
        file.seek(0)
        yield file.fileno()
        return
    with again.open("rb", buffering=0) as readable:
        yield readable.fileno()


def _verdict(answer: bytes, ended: Ended, limits: Limits) -> CheckedAdapter:
    """Raises CheckLostError, CheckReadingError."""
    used_up = ended.status == -signal.SIGKILL and ended.cpu_s >= limits.cpu_s
    if ended.timed_out or used_up or ended.status == -signal.SIGXCPU:
        return _refused("check_timed_out", _TIMED_OUT)
    if ended.status == nursery.OUT_OF_MEMORY:
        return _refused("check_out_of_memory", _OUT_OF_MEMORY)
    if ended.status == nursery.TROUBLE_READING:
        raise CheckReadingError("the upload could not be read during the check")
    if -ended.status in _OUTSIDE:
        name = signal.Signals(-ended.status).name
        raise CheckLostError(f"the check process was killed ({name})")
    if ended.status == 0:
        try:
            return CHECKED.validate_json(answer)
        except ValidationError:
            pass  # no check of ours answers so
    return _refused("check_crashed", _CRASHED)


def _refused(code: str, message: str) -> CheckedAdapter:
    report = ValidationReport(problems=[Problem(field="weights", code=code, message=message)])
    return CheckedAdapter(report, None, None, None, (), None)


def lost_too_often(times: int) -> CheckedAdapter:
    """For an adapter whose checks never came to an end."""
    return _refused(
        "check_crashed", f"the check of this adapter was started {times} times, and {_NEVER}"
    )


_NEVER = (
    "it never finished, because the process or the machine ended first each time. Upload the "
    "adapter again; if this happens again, tell the operator the version's id"
)
_CRASHED = (
    "the check process crashed on this file. Save the adapter again with PEFT's save_pretrained "
    "and upload that; if it crashes again, tell the operator the version's id"
)
_OUT_OF_MEMORY = (
    f"the check needed more than the allowed {MEMORY_BYTES // 1024**2} MiB of memory. Save "
    "the adapter again with PEFT's save_pretrained; if its config is large, leave out what PEFT "
    "does not need"
)
_TIMED_OUT = (
    "the check did not finish in time. Save the adapter again with PEFT's save_pretrained, in "
    "16 bits and with no more modules than it needs, and upload that"
)
