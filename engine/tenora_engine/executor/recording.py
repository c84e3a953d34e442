"""Recordings: every plan that an executor was given and what came of it, in a file that another
executor can be given again (`tenora bench replay`). They hold what users wrote and the adapters
that answered: the file is its owner's alone, and is kept as their data is."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from tenora_engine.adapters.pack import serialise
from tenora_engine.adapters.packed import PackedAdapter
from tenora_engine.config import ResolvedConfig
from tenora_engine.errors import RecordingError
from tenora_engine.executor.interface import Executor
from tenora_engine.step import EndedCopy, StepPlan, StepResult, decode_plan, decode_result, encode

VERSION = 1

MAX_BYTES = 16 * 1024**3
"""Of a recording; what comes after is not recorded."""

_LENGTH_BYTES = 4

_log = logging.getLogger(__name__)


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first frame."""

    version: int
    config: ResolvedConfig


class Adapter(msgspec.Struct, frozen=True, tag="adapter"):
    """One that later plans name, before the first of them."""

    digest: str
    layout_key: str
    packed: bytes  # see `adapters.pack.serialise`


class Planned(msgspec.Struct, frozen=True, tag="plan"):
    """A plan whose execution begins: that of a step which is preempted appears once."""

    encoded: bytes  # see `step.encode`

    @property
    def plan(self) -> StepPlan:
        return decode_plan(self.encoded)


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What came of the plan of this number."""

    number: int
    encoded: bytes  # see `step.encode`

    @property
    def result(self) -> StepResult:
        return decode_result(self.encoded)


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The plan of this number raised."""

    number: int
    error: str


Frame = Begin | Adapter | Planned | Done | Failed


class RecordingExecutor:
    """An `Executor` that passes everything on and writes it down. Where nothing can be written any
    more it says so once, and goes on without."""

    def __init__(self, executor: Executor, path: Path, config: ResolvedConfig) -> None:
        """Raises RecordingError when the file cannot be made. One that exists is left alone: an
        engine that is started again writes to the next, `path.1` and so on."""
        self._executor = executor
        self.can_preempt = executor.can_preempt
        self.is_exact = executor.is_exact
        self.preempt = executor.preempt
        self.take_ended_copies: Callable[[], list[EndedCopy]] = executor.take_ended_copies
        self._file: BinaryIO | None = _create(path)
        self._num_bytes = 0
        self._adapters: set[str] = set()
        self._under_way: set[int] = set()
        self._write(Begin(VERSION, _without_secrets(config)))

    @property
    def on_copy_ended(self) -> Callable[[], None] | None:
        return self._executor.on_copy_ended

    @on_copy_ended.setter
    def on_copy_ended(self, call: Callable[[], None] | None) -> None:
        self._executor.on_copy_ended = call

    def stage(self, adapters: Iterable[PackedAdapter]) -> None:
        staged = list(adapters)
        for packed in staged:
            if self._file is not None and packed.digest not in self._adapters:
                self._adapters.add(packed.digest)
                self._write(Adapter(packed.digest, packed.layout_key, serialise(packed)))
        self._executor.stage(staged)

    def execute(self, plan: StepPlan) -> StepResult | None:
        if plan.number not in self._under_way:
            self._under_way.add(plan.number)
            self._write(Planned(encode(plan)))
        try:
            result = self._executor.execute(plan)
        except Exception as error:
            self._under_way.discard(plan.number)
            self._write(Failed(plan.number, f"{type(error).__name__}: {error}"))
            raise
        if result is not None:
            self._under_way.discard(plan.number)
            self._write(Done(plan.number, encode(result)))
        return result

    def close(self) -> None:
        self._executor.close()
        self._end()

    def _write(self, frame: Frame) -> None:
        if self._file is None:
            return
        content = msgspec.msgpack.encode(frame)
        self._num_bytes += _LENGTH_BYTES + len(content)
        try:
            if self._num_bytes > MAX_BYTES:
                raise OSError(f"it would exceed {MAX_BYTES / 1024**3:.0f} GiB")
            self._file.write(len(content).to_bytes(_LENGTH_BYTES, "little"))
            self._file.write(content)
        except OSError as error:
            _log.error("the recording of steps stops here: %s", error)
            self._end()

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # of what was still to be written
                _log.error("the end of the recording of steps could not be written: %s", error)


class Recording:
    """One file, read from its beginning. Where its end is cut off, as that of an engine which was
    killed, it ends before."""

    def __init__(self, path: Path) -> None:
        """Raises RecordingError when it is no recording or of another version."""
        self._path = path
        first = next(self._frames(), None)
        if not isinstance(first, Begin) or first.version != VERSION:
            raise RecordingError(
                f"{path} is not a recording of version {VERSION}; make one with `tenora engine "
                "--record FILE`"
            )
        self.config = first.config

    def frames(self) -> Iterator[Adapter | Planned | Done | Failed]:
        """In the order in which they happened. Raises RecordingError where the file is damaged."""
        for frame in self._frames():
            if not isinstance(frame, Begin):
                yield frame

    def _frames(self) -> Iterator[Frame]:
        try:
            with open(self._path, "rb") as file:
                while head := file.read(_LENGTH_BYTES):
                    length = int.from_bytes(head, "little")
                    content = file.read(length)
                    if len(head) < _LENGTH_BYTES or len(content) < length:
                        return
                    yield _decoder.decode(content)
        except (OSError, msgspec.DecodeError, MemoryError) as error:
            raise RecordingError(f"{self._path} cannot be read: {error}") from error


def _create(path: Path) -> BinaryIO:
    number = 0
    while True:
        name = path if not number else path.with_name(f"{path.name}.{number}")
        try:
            return os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RecordingError(
                f"steps cannot be recorded to {name} ({error}); choose a file in an existing "
                "folder that can be written"
            ) from error


def _without_secrets(config: ResolvedConfig) -> ResolvedConfig:
    """Without what an executor does not need, which may hold passwords."""
    engine = msgspec.structs.replace(
        config.engine,
        redis_url=None,
        redis_key=b"",
        object_store=None,
        outbox_dir=None,
        record=None,
        draft_layer=None,  # what it proposed is in the plans
        adapter_draft_bytes=0,
    )
    return msgspec.structs.replace(config, engine=engine)


_decoder = msgspec.msgpack.Decoder(Frame)
