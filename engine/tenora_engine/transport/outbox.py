"""UsageOutbox: usage records wait here, on disk, from the moment a sequence ends until someone has
acknowledged them: the at-least-once half of exactly once. Knows no prices and no database."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.events import Event, FinishEvent, UsageRecord
from tenora_engine.transport.segment_log import ACK, RECORD, Frame, Position, SegmentLog

GIVEN_MAX = 256
_WINDOW = 4096  # records held in memory; the rest waits in its segments
_MEMORY_MAX = 1_000_000  # without a directory there is nowhere else: about 1 GB

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(UsageRecord).decode
_decode_ids = msgspec.msgpack.Decoder(list[str]).decode


class OutboxFullError(EngineError):
    """Usage records can neither be written nor held in memory any more."""


@dataclass(frozen=True)
class _Held:
    record: UsageRecord
    segment: int | None  # None: in memory only


def usage_of(events: Iterable[Event]) -> list[UsageRecord]:
    """The records that must be in the outbox before these events are shown to anyone."""
    return [event.usage for event in events if isinstance(event, FinishEvent)]


class UsageOutbox:
    """Records of ended sequences, oldest first, until acknowledged. One owner, one thread.

    With a directory, `append` returns after the records are on the disk (one fsync a call), and an
    outbox opened later finds them again, whenever and however its last owner ended. Without one
    they last as long as the process.
    """

    def __init__(self, directory: Path | None, window: int = _WINDOW) -> None:
        """Raises EngineUnavailableError when another process holds the directory."""
        self._window_max = window if directory is not None else _MEMORY_MAX
        self._window: OrderedDict[str, _Held] = OrderedDict()
        self._live: Counter[int] = Counter()  # records not acknowledged, by segment
        self._acknowledged: set[str] = set()  # read at opening, for records still to be read
        self._beyond: Position | None = None  # where the records begin that are not in the window
        self._log = SegmentLog(directory) if directory is not None else None
        if self._log is not None:
            self._recover(self._log)

    @property
    def pending(self) -> int:
        """Records not acknowledged."""
        unwritten = sum(held.segment is None for held in self._window.values())
        return unwritten + sum(self._live.values())

    def append(self, records: Sequence[UsageRecord]) -> None:
        """Keep the records. A disk that fails is logged, and the records are held in memory; raises
        OutboxFullError when there is no room there either."""
        if not records:
            return
        position = None
        if self._log is not None:
            frames = [(RECORD, _encode(record)) for record in records]
            try:
                position = self._log.append(frames, sync=True)
            except OSError as error:
                _log.error("the usage outbox cannot write: %s; records are held in memory", error)
        if position is None:
            self._hold_in_memory(records)
            return
        self._live[position.segment] += len(records)
        if self._beyond is not None or len(self._window) + len(records) > self._window_max:
            self._beyond = self._beyond or position
            return
        for record in records:
            self._window[record.event_id] = _Held(record, position.segment)

    def _hold_in_memory(self, records: Sequence[UsageRecord]) -> None:
        if len(self._window) + len(records) > max(self._window_max, 2 * _WINDOW):
            raise OutboxFullError(
                f"{len(self._window)} usage records wait and no more can be kept; set outbox_dir to"
                " a disk with room, and see why usage is not being read"
            )
        for record in records:
            self._window[record.event_id] = _Held(record, None)

    def oldest(
        self, limit: int = GIVEN_MAX, without: Collection[str] = frozenset()
    ) -> list[UsageRecord]:
        """Up to `limit` records that nobody has acknowledged, oldest first, save those whose event
        ids are in `without`."""
        if len(self._window) < limit + len(without):
            self._read_on(self._window_max + len(without))
        free = (held.record for held in self._window.values())
        return list(islice((record for record in free if record.event_id not in without), limit))

    def acknowledge(self, event_ids: Iterable[str]) -> None:
        """Never give these again. Ids that were not given out are ignored."""
        known = [event_id for event_id in event_ids if event_id in self._window]
        if not known:
            return
        segments = [self._window.pop(event_id).segment for event_id in known]
        if self._log is None:
            return
        try:
            # Not synced: what a power cut forgets is given once more, and known by its id.
            self._log.append([(ACK, _encode(known))], sync=False)
        except OSError as error:
            _log.error("the usage outbox cannot write: %s; records may be given twice", error)
        self._live.subtract(segment for segment in segments if segment is not None)
        self._delete_finished(self._log)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _delete_finished(self, log: SegmentLog) -> None:
        """Delete from the oldest on: a later segment holds the acknowledgements of earlier ones."""
        for segment in log.segments():
            if self._live[segment] > 0 or not log.may_delete(segment):
                return
            log.delete(segment)
            del self._live[segment]

    def _recover(self, log: SegmentLog) -> None:
        segments = log.segments()
        for segment in segments:
            for frame in log.read(Position(segment, 0)):
                if frame.kind == ACK:
                    self._acknowledged.update(_ids_in(frame))
        for segment in segments:
            for frame in log.read(Position(segment, 0)):
                if frame.kind == RECORD and self._wanted(frame, segment):
                    self._live[segment] += 1
        self._delete_finished(log)
        if self.pending:
            self._beyond = Position(log.segments()[0], 0)

    def _wanted(self, frame: Frame, segment: int) -> bool:
        """Whether the record is still to be given, or cannot be read: then it is never given and
        its segment stays, for whoever can read it."""
        record = _record_in(frame)
        if record is None:
            _log.error(
                "a usage record in segment %d of the outbox, at byte %d, cannot be read and is "
                "kept there unbilled; was it written by another version?",
                segment,
                frame.offset,
            )
            return True
        return record.event_id not in self._acknowledged

    def _read_on(self, window_max: int) -> None:
        """Fill the window with the records that follow on the disk."""
        if self._log is None or self._beyond is None:
            return
        start = self._beyond
        for segment in self._log.segments():
            if segment < start.segment:
                continue
            offset = start.offset if segment == start.segment else 0
            for frame in self._log.read(Position(segment, offset)):
                if frame.kind != RECORD:
                    continue
                if len(self._window) >= window_max:
                    self._beyond = Position(segment, frame.offset)
                    return
                record = _record_in(frame)
                if record is not None and record.event_id not in self._acknowledged:
                    self._window[record.event_id] = _Held(record, segment)
        self._beyond = None
        self._acknowledged.clear()


def _record_in(frame: Frame) -> UsageRecord | None:
    try:
        return _decode_record(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ids_in(frame: Frame) -> list[str]:
    """None of one that cannot be read: its records are given once more, and known by their ids."""
    try:
        return _decode_ids(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
