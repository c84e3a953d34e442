"""An append-only log in numbered segment files, where each frame is whole or absent after a crash.
Knows frames, not what they mean."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenora_engine.errors import EngineUnavailableError
from tenora_engine.private_folders import make_private

RECORD = 1
ACK = 2
OCCUPANCY = 3
DAMAGED = 0
"""Kind of a stretch of bytes in which no frame is whole, though frames follow: never written."""

_HEADER = struct.Struct("<IIB")  # payload bytes, CRC-32 of length, kind and payload, kind
_SEGMENT_BYTES = 4 * 1024**2
_SUFFIX = ".segment"
_SET_ASIDE = ".damaged"
_KIND = re.compile(rb"[\x01-\x03]")


@dataclass(frozen=True)
class Position:
    segment: int
    offset: int


@dataclass(frozen=True)
class Frame:
    kind: int
    payload: bytes
    offset: int  # where it begins in its segment


class SegmentLog:
    """The segments of one directory, held by one process at a time. Frames are only ever added;
    opening begins a new segment, so a torn tail stays where it is and hides nothing after it."""

    def __init__(self, directory: Path, segment_bytes: int = _SEGMENT_BYTES) -> None:
        """Raises EngineUnavailableError when another process holds the directory."""
        make_private(directory)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._lock_fd = os.open(directory / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise EngineUnavailableError(
                f"another engine is using the outbox in {directory}; stop it, or set "
                "another outbox_dir"
            ) from error
        self._segments = self._numbers(_SUFFIX)
        self._next = max([0, *self._segments, *self._numbers(_SET_ASIDE)]) + 1
        self._fd: int | None = None  # the open segment, which is the last one
        self._size = 0

    def begin_after(self, segment: int) -> None:
        """No new segment has this number or a lower one."""
        self._next = max(self._next, segment + 1)

    def segments(self) -> list[int]:
        """Oldest first."""
        return list(self._segments)

    def append(self, frames: Sequence[tuple[int, bytes]], sync: bool) -> Position:
        """Write all frames into one segment and, if asked, wait until the disk has them. Raises
        OSError; then none of them is there, as far as the disk still does anything, and the next
        call begins another segment."""
        data = b"".join(_frame(kind, payload) for kind, payload in frames)
        try:
            descriptor = self._open_segment()
            position = Position(self._segments[-1], self._size)
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            if sync:
                os.fdatasync(descriptor)
        except OSError:
            self._take_back()
            raise
        self._size += len(data)
        return position

    def read(self, start: Position) -> Iterator[Frame]:
        """The whole frames of one segment from `start` on, up to its end or its torn tail: bytes
        that break off and have no whole frame after them. Other bytes that are no frame come as
        one that is DAMAGED."""
        try:
            data = self._path(start.segment).read_bytes()
        except FileNotFoundError:
            return
        offset = start.offset
        while offset < len(data):
            end = _end_of(data, offset)
            if end is not None:
                kind = data[offset + _HEADER.size - 1]
                yield Frame(kind, data[offset + _HEADER.size : end], offset)
            elif (end := _end_of_damage(data, offset)) is not None:
                yield Frame(DAMAGED, data[offset:end], offset)
            else:
                return
            offset = end

    def may_delete(self, segment: int) -> bool:
        """Whether the segment is done with: not the open one, or that one grown to a fair size."""
        is_open = self._fd is not None and segment == self._segments[-1]
        return not is_open or self._size * 4 > self._segment_bytes

    def delete(self, segment: int) -> None:
        if self._fd is not None and segment == self._segments[-1]:
            self._leave_segment()
        self._path(segment).unlink(missing_ok=True)
        self._segments.remove(segment)

    def set_aside(self, segment: int) -> None:
        """As `delete`, and keep its file under another name, for whoever can read it."""
        if self._fd is not None and segment == self._segments[-1]:
            self._leave_segment()
        path = self._path(segment)
        path.replace(path.with_suffix(_SET_ASIDE))
        self._segments.remove(segment)

    def set_aside_count(self) -> int:
        """Files that were set aside and that nobody has taken away since."""
        return len(self._numbers(_SET_ASIDE))

    def close(self) -> None:
        self._leave_segment()
        os.close(self._lock_fd)

    def _numbers(self, suffix: str) -> list[int]:
        names = (path.stem for path in self._directory.glob(f"*{suffix}"))
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:010d}{_SUFFIX}"

    def _open_segment(self) -> int:
        if self._fd is not None and self._size >= self._segment_bytes:
            self._leave_segment()
        if self._fd is None:
            path = self._path(self._next)
            self._next += 1
            self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o600)
            self._segments.append(self._next - 1)
            self._size = 0
            self._sync_directory()
        return self._fd

    def _take_back(self) -> None:
        """What a failed write has left: it will be written again, elsewhere."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)
        is_empty = self._size == 0
        self._leave_segment()
        if is_empty:
            with contextlib.suppress(OSError):
                self._path(self._segments[-1]).unlink()
                self._segments.pop()

    def _leave_segment(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _sync_directory(self) -> None:
        """So that the new file's name survives a power cut."""
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), _checksum(kind, payload), kind) + payload


def _end_of(data: bytes, offset: int) -> int | None:
    """Where the frame ends that begins there; None where none does that is whole."""
    body = offset + _HEADER.size
    if body > len(data):
        return None
    length, checksum, kind = _HEADER.unpack_from(data, offset)
    end = int(body + length)
    is_whole = end <= len(data) and checksum == _checksum(kind, data[body:end])
    return end if is_whole else None


def _end_of_damage(data: bytes, offset: int) -> int | None:
    """Where the next whole frame begins after bytes that are none, or the end of the data; None for
    a torn tail. A crash leaves the beginning of a frame, or zeros, never as many bytes as a frame
    has with another content."""
    body = offset + _HEADER.size
    end = body if body > len(data) else body + int(_HEADER.unpack_from(data, offset)[0])
    if end <= len(data) and _end_of(data, end) is not None:
        return end
    for found in _KIND.finditer(data, body):
        start = found.start() - _HEADER.size + 1
        if _end_of(data, start) is not None:
            return start
    is_torn = end > len(data) or not any(data[offset:])
    return None if is_torn else len(data)


def _checksum(kind: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<IB", len(payload), kind)))
