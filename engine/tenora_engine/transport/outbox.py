"""UsageOutbox: usage records wait here, on disk, from the moment a sequence ends until someone has
acknowledged them: the at-least-once half of exactly once. Knows no prices and no database."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from tenora_engine.errors import EngineError
from tenora_engine.events import (
    EndEvent,
    EngineTotals,
    Event,
    Metered,
    OccupancyRecord,
    UsageRecord,
)
from tenora_engine.transport.reserve import DiskReserve
from tenora_engine.transport.segment_log import (
    ACK,
    DAMAGED,
    OCCUPANCY,
    RECORD,
    Frame,
    Position,
    SegmentLog,
)
from tenora_engine.transport.totals import Totals

GIVEN_MAX = 256
RESERVE_BYTES = 4 * 1024**2
"""Room for the records of what runs when the disk is full: 4000 and more."""

_WINDOW = 4096  # records held in memory; the rest waits in its segments
_MEMORY_MAX = 1_000_000  # without a directory there is nowhere else: about 1 GB
_MEMORY_LEFT = 10_000  # of which the last are for what runs

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[int, Callable[[bytes], Metered]] = {
    RECORD: msgspec.msgpack.Decoder(UsageRecord).decode,
    OCCUPANCY: msgspec.msgpack.Decoder(OccupancyRecord).decode,
}
_decode_ids = msgspec.msgpack.Decoder(list[str]).decode


class OutboxFullError(EngineError):
    """Usage records can neither be written nor held in memory any more."""


@dataclass(frozen=True)
class _Held:
    record: Metered
    segment: int | None  # None: in memory only


def usage_of(events: Iterable[Event]) -> list[UsageRecord]:
    """The records that must be in the outbox before these events are shown to anyone."""
    return [record for event in events if isinstance(event, EndEvent) for record in event.billed]


class UsageOutbox:
    """Records of ended sequences, oldest first, until acknowledged. One owner, one thread.

    With a directory, `append` returns after the records are on the disk (one fsync a call), and an
    outbox opened later finds them again, whenever and however its last owner ended. Without one
    they last as long as the process.

    While there is `trouble`, nothing new should be begun: what it used could not be kept. What runs
    ends and is kept all the same, in the room of a reserve and then in memory. `recover` may end
    the trouble.
    """

    def __init__(
        self, directory: Path | None, window: int = _WINDOW, reserve_bytes: int = RESERVE_BYTES
    ) -> None:
        """Raises EngineUnavailableError when another process holds the directory."""
        self._window_max = window if directory is not None else _MEMORY_MAX
        self._window: OrderedDict[str, _Held] = OrderedDict()
        self._live: Counter[int] = Counter()  # records not acknowledged, by segment
        self._acknowledged: set[str] = set()  # read at opening, for records still to be read
        self._beyond: Position | None = None  # where the records begin that are not in the window
        self._damaged: set[int] = set()  # segments of which a part is no frame
        self._strange = 0  # whole frames whose record cannot be read
        self._owed: list[Metered] = []  # acknowledged before they could be written
        self._trouble: str | None = None
        self._log: SegmentLog | None = None
        if directory is None:
            self._totals = Totals(None)
            return
        is_older = (directory / "lock").exists() and not (directory / "totals").exists()
        self._log = SegmentLog(directory)
        self._totals = Totals(directory, is_older)
        self._log.begin_after(self._totals.through)
        self._recover(self._log)
        self._reserve = DiskReserve(directory, reserve_bytes)
        try:
            self._reserve.take()
        except OSError as error:
            self._note_trouble(error)

    @property
    def pending(self) -> int:
        """Records not acknowledged."""
        in_memory = sum(held.segment is None for held in self._window.values())
        return in_memory + sum(self._live.values())

    @property
    def trouble(self) -> str | None:
        """Why no work should be begun, in words for a person."""
        if self._log is None and len(self._window) > _MEMORY_MAX - _MEMORY_LEFT:
            return (
                f"{len(self._window)} usage records are in memory and nobody reads them; set "
                "outbox_dir to a disk with space"
            )
        return self._trouble

    def totals(self, since: str) -> EngineTotals:
        """Of all records that are kept or have been, by tenant and UTC day, from that day on."""
        told = self._totals.view(since, _usage(self._unwritten() + self._owed))
        return msgspec.structs.replace(told, unreadable=self.unreadable)

    @property
    def unreadable(self) -> int:
        """Segments with damage, set aside ones included, and records that are whole and cannot be
        read: they stay on the disk and are not billed."""
        aside = 0 if self._log is None else self._log.set_aside_count()
        return aside + len(self._damaged) + self._strange

    def append(self, records: Sequence[Metered]) -> None:
        """Keep the records. A disk that fails is logged, and the records are held in memory; raises
        OutboxFullError when there is no room there either."""
        if not records:
            return
        position = self._write(records)
        if position is None:
            self._hold_in_memory(records)
            return
        self._note_written(position, records)
        if self._beyond is not None or len(self._window) + len(records) > self._window_max:
            self._beyond = self._beyond or position
            return
        for record in records:
            self._window[record.event_id] = _Held(record, position.segment)

    def recover(self) -> None:
        """If there is trouble, see whether it is over: the reserve is there again and the records
        that are in memory alone have been written."""
        if self._log is None or self._trouble is None:
            return
        try:
            self._reserve.take()
            self._write_unwritten(self._log)
        except OSError:
            return
        self._trouble = None
        _log.warning("the usage outbox can be written again; new requests are accepted")

    def _write_unwritten(self, log: SegmentLog) -> None:
        """What has been acknowledged is written for the totals, with its acknowledgement."""
        unwritten, owed = self._unwritten(), self._owed
        frames = _frames(unwritten + owed)
        if not frames:
            return
        frames.append((ACK, _encode([record.event_id for record in owed])))
        position = log.append(frames, sync=True)
        self._note_written(position, unwritten + owed)
        self._live[position.segment] -= len(owed)
        self._owed = []
        for record in unwritten:
            if self._beyond is None:
                self._window[record.event_id] = _Held(record, position.segment)
            else:  # it lies behind others, which are read first
                del self._window[record.event_id]

    def _write(self, records: Sequence[Metered]) -> Position | None:
        """Where they are; None where they could not be written."""
        if self._log is None:
            return None
        frames = _frames(records)
        while True:
            try:
                return self._log.append(frames, sync=True)
            except OSError as error:
                self._note_trouble(error)
                if not self._reserve.give():
                    return None

    def _note_written(self, position: Position, records: Sequence[Metered]) -> None:
        self._live[position.segment] += len(records)
        self._totals.add(position.segment, _usage(records))

    def _note_trouble(self, error: OSError) -> None:
        if self._trouble is None:
            _log.error(
                "the usage outbox cannot be written: %s; no new requests are accepted", error
            )
        self._trouble = (
            f"usage cannot be recorded: {error.strerror or error} (on the outbox's disk); "
            "running requests finish and their usage is kept, and new requests are accepted "
            "once the disk can be written again"
        )

    def _hold_in_memory(self, records: Sequence[Metered]) -> None:
        if len(self._window) + len(records) > max(self._window_max, 2 * _WINDOW):
            raise OutboxFullError(
                f"{len(self._window)} usage records are waiting and no more can be kept; set "
                "outbox_dir to a disk with space, and check why usage is not being read"
            )
        if self._log is None:
            self._totals.add(0, _usage(records))
        for record in records:
            self._window[record.event_id] = _Held(record, None)

    def _unwritten(self) -> list[Metered]:
        """In memory only, though there is a disk."""
        if self._log is None:
            return []
        return [held.record for held in self._window.values() if held.segment is None]

    def oldest(
        self, limit: int = GIVEN_MAX, without: Collection[str] = frozenset()
    ) -> list[Metered]:
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
        popped = [self._window.pop(event_id) for event_id in known]
        if self._log is None:
            return
        try:
            # Not synced: what a power cut forgets is given once more, and known by its id.
            self._log.append([(ACK, _encode(known))], sync=False)
        except OSError as error:
            _log.error(
                "the usage outbox cannot be written: %s; records may be delivered twice", error
            )
        self._live.subtract(held.segment for held in popped if held.segment is not None)
        self._owed += [held.record for held in popped if held.segment is None]
        self._delete_finished(self._log)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _delete_finished(self, log: SegmentLog) -> None:
        """Delete from the oldest on: a later segment holds the acknowledgements of earlier ones."""
        for segment in log.segments():
            if self._live[segment] > 0 or not log.may_delete(segment):
                return
            self._delete(log, segment)
            if segment in self._damaged:
                return  # it could not be set aside

    def _delete(self, log: SegmentLog, segment: int) -> None:
        if segment in self._damaged:
            self._set_aside(log, segment)
            return
        try:
            self._totals.save(segment)
        except OSError:  # perhaps for want of the room that the segment takes
            log.delete(segment)
            try:
                self._totals.save(segment)
            except OSError as error:
                _log.error("the usage totals of the outbox are only in memory: %s", error)
        else:
            log.delete(segment)
        del self._live[segment]

    def _set_aside(self, log: SegmentLog, segment: int) -> None:
        """Keep a damaged segment under another name: its readable records are acknowledged, and the
        rest must not be lost."""
        try:
            self._totals.save(segment)
            log.set_aside(segment)
        except OSError as error:
            _log.error("a damaged segment of the outbox could not be set aside: %s", error)
            return
        self._damaged.discard(segment)
        del self._live[segment]

    def _note_damage(self, segment: int, frame: Frame) -> None:
        if segment not in self._damaged:
            _log.error(
                "segment %d of the usage outbox is damaged at byte %d; what is whole behind that "
                "is read, the rest is not billed, and the file is kept",
                segment,
                frame.offset,
            )
        self._damaged.add(segment)

    def _recover(self, log: SegmentLog) -> None:
        segments = log.segments()
        for segment in segments:
            for frame in log.read(Position(segment, 0)):
                if frame.kind == ACK:
                    self._acknowledged.update(_ids_in(frame))
        for segment in segments:
            found: list[UsageRecord] = []
            for frame in log.read(Position(segment, 0)):
                if frame.kind == DAMAGED:
                    self._note_damage(segment, frame)
                elif frame.kind in _decoders:
                    record = _record_in(frame)
                    self._live[segment] += self._is_wanted(record, frame, segment)
                    if isinstance(record, UsageRecord):
                        found.append(record)
            self._totals.recover(segment, found)
        self._delete_finished(log)
        if self.pending:
            self._beyond = Position(log.segments()[0], 0)

    def _is_wanted(self, record: Metered | None, frame: Frame, segment: int) -> bool:
        """Whether the record is still to be given, or cannot be read: then it is never given and
        its segment stays, for whoever can read it."""
        if record is None:
            _log.error(
                "a usage record in segment %d of the outbox, at byte %d, cannot be read; it "
                "stays there and is not billed. Was it written by another version?",
                segment,
                frame.offset,
            )
            self._strange += 1
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
                if frame.kind == DAMAGED:
                    self._note_damage(segment, frame)
                if frame.kind not in _decoders:
                    continue
                if len(self._window) >= window_max:
                    self._beyond = Position(segment, frame.offset)
                    return
                record = _record_in(frame)
                if record is not None and record.event_id not in self._acknowledged:
                    self._window[record.event_id] = _Held(record, segment)
        self._beyond = None
        self._acknowledged.clear()


def _usage(records: Iterable[Metered]) -> list[UsageRecord]:
    return [record for record in records if isinstance(record, UsageRecord)]


def _frames(records: Iterable[Metered]) -> list[tuple[int, bytes]]:
    return [
        (RECORD if isinstance(record, UsageRecord) else OCCUPANCY, _encode(record))
        for record in records
    ]


def _record_in(frame: Frame) -> Metered | None:
    try:
        return _decoders[frame.kind](frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _ids_in(frame: Frame) -> list[str]:
    """None of one that cannot be read: its records are given once more, and known by their ids."""
    try:
        return _decode_ids(frame.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
