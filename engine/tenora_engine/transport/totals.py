"""Totals: what an engine has metered in all, by tenant and UTC day, as durable as the outbox's
records: a record that is on the disk is counted, whoever has acknowledged it since."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from tenora_engine.clocks import today, wall
from tenora_engine.events import EngineTotals, TenantDay, UsageRecord
from tenora_engine.ulid import new_id

KEPT_DAYS = 62
"""Of which an engine still knows its totals; the platform has kept them since."""

_SUFFIX = ".totals"
_log = logging.getLogger(__name__)

Counts = list[int]  # sequences, prompt, cached and output tokens, cold loads
Days = dict[str, dict[str, Counts]]  # by UTC day, by tenant


class _Outbox(msgspec.Struct):
    """Which outbox this is."""

    engine: str
    whole_since: str


class _Day(msgspec.Struct):
    """One day without the records of the segments after `through`."""

    through: int
    tenants: dict[str, Counts]


class Totals:
    """The records of a segment are counted in memory for as long as the segment is on the disk:
    they are counted again when it is read again. Before it is deleted they go into the files of
    their days, one a day, each of which knows the last segment that is in it.
    """

    def __init__(self, directory: Path | None, is_older: bool = False) -> None:
        """`is_older`: the outbox has been used by an engine that did not count."""
        since = today().date() + timedelta(days=1 if is_older else 0)
        self._folder = None if directory is None else directory / "totals"
        self._outbox = _Outbox(new_id("eng"), since.isoformat())
        self._days: dict[str, _Day] = {}
        self._segments: dict[int, Days] = {}
        self._unsaved: set[str] = set()
        if self._folder is not None:
            self._read(self._folder)

    @property
    def through(self) -> int:
        """The last segment that is in a file; no later segment may have its number or a lower."""
        return max((day.through for day in self._days.values()), default=0)

    def add(self, segment: int, records: Iterable[UsageRecord]) -> None:
        """They are in this segment; 0: in memory, where there is no directory."""
        days = self._segments.setdefault(segment, {})
        for record in records:
            _count(days, record)

    def recover(self, segment: int, records: Iterable[UsageRecord]) -> None:
        """The same of a segment that was there before: what is in its day's file is not added."""
        days = self._segments.setdefault(segment, {})
        for record in records:
            known = self._days.get(_day_of(record))
            if known is None or segment > known.through:
                _count(days, record)

    def save(self, segment: int) -> None:
        """The segment is about to be deleted. Raises OSError, and may be called again."""
        for name, tenants in self._segments.pop(segment, {}).items():
            day = self._days.setdefault(name, _Day(0, {}))
            _merge(day.tenants, tenants)
            self._unsaved.add(name)
        for name in list(self._unsaved):
            day = self._days[name]
            day.through = max(day.through, segment)
            self._write(name, day)
            self._unsaved.discard(name)
        self._forget_old()

    def view(self, since: str, unwritten: Iterable[UsageRecord]) -> EngineTotals:
        """Of the days from `since` (YYYY-MM-DD) on; `unwritten` are in no segment yet."""
        more: Days = {}
        for record in unwritten:
            _count(more, record)
        sums: Days = {}
        kept = {name: day.tenants for name, day in self._days.items()}
        for days in (kept, *self._segments.values(), more):
            for name, tenants in days.items():
                if name >= since:
                    _merge(sums.setdefault(name, {}), tenants)
        rows = [
            TenantDay(tenant, name, *counts)
            for name, tenants in sorted(sums.items())
            for tenant, counts in sorted(tenants.items())
        ]
        return EngineTotals(self._outbox.engine, self._outbox.whole_since, wall(), rows)

    def _read(self, folder: Path) -> None:
        """What cannot be read is said, and counted anew."""
        folder.mkdir(mode=0o700, exist_ok=True)
        identity = folder / "engine"
        try:
            self._outbox = msgspec.json.decode(identity.read_bytes(), type=_Outbox)
        except FileNotFoundError:
            _write_file(identity, msgspec.json.encode(self._outbox))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _log.error("the usage totals of the outbox start again: %s", error)
            _write_file(identity, msgspec.json.encode(self._outbox))
        for path in folder.glob(f"*{_SUFFIX}"):
            try:
                self._days[path.stem] = msgspec.msgpack.decode(path.read_bytes(), type=_Day)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                _log.error("the totals in %s cannot be read: %s", path.name, error)

    def _write(self, name: str, day: _Day) -> None:
        if self._folder is not None:
            _write_file(self._folder / f"{name}{_SUFFIX}", msgspec.msgpack.encode(day))

    def _forget_old(self) -> None:
        if len(self._days) <= KEPT_DAYS:
            return
        oldest = (date.fromisoformat(max(self._days)) - timedelta(days=KEPT_DAYS)).isoformat()
        for name in [name for name in self._days if name < oldest]:
            del self._days[name]
            if self._folder is not None:
                (self._folder / f"{name}{_SUFFIX}").unlink(missing_ok=True)


def _day_of(record: UsageRecord) -> str:
    """As the platform takes it from the event's time, to the microsecond."""
    try:
        return datetime.fromtimestamp(record.finished_s, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):  # a clock gone mad must not stop the records
        return date.min.isoformat()


def _count(days: Days, record: UsageRecord) -> None:
    tenants = days.setdefault(_day_of(record), {})
    counts = tenants.setdefault(record.tenant, [0] * 5)
    counts[0] += 1
    counts[1] += record.prompt_tokens
    counts[2] += record.cached_tokens
    counts[3] += record.output_tokens
    counts[4] += record.cold_load


def _merge(into: dict[str, Counts], tenants: dict[str, Counts]) -> None:
    for tenant, counts in tenants.items():
        sums = into.setdefault(tenant, [0] * 5)
        for place, count in enumerate(counts):
            sums[place] += count


def _write_file(path: Path, data: bytes) -> None:
    """Whole or not at all, and on the disk."""
    draft = path.with_suffix(".new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
