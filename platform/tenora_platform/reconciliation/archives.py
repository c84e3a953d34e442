"""The layer of archived events: the files that stand for months which have left the database, each
compared with its row of usage_archives and read as a stream. What events add up to is not known
here."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from tenora_platform.object_store import open_object_store
from tenora_platform.reconciliation.bounds import Bounds, Window
from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.reading import Snapshot
from tenora_platform.usage.archive import ArchiveError, Tally, events_in
from tenora_platform.usage.partitions import after, bound

Key = tuple[UUID | None, int | None]
"""Request and sequence."""


class Part(NamedTuple):
    """A row of usage_archives whose events only the file has."""

    month: date
    part: int
    path: str
    sha256: str
    bytes: int
    rows: int
    sums: dict[str, Any]
    first_event: datetime
    last_event: datetime


_PARTS: LiteralString = (
    "SELECT month, part, path, sha256, bytes, rows, sums, first_event, last_event"
    " FROM usage_archives WHERE dropped_at IS NOT NULL ORDER BY month, part"
)


class Archives:
    """Those of one snapshot. `events` counts what `rows` has given; `met` are those of `wanted`
    that it came upon, whether or not they were asked for."""

    def __init__(self, snapshot: Snapshot, location: str, found: Differences) -> None:
        self._parts = [Part(*row) for row in snapshot.all(_PARTS)]
        self._location = location
        self._found = found
        self._told: set[tuple[str, str, str]] = set()  # a file may be read for two months
        months = {each.month for each in self._parts}
        self._spans = [(bound(month), bound(after(month, 1))) for month in sorted(months)]
        self.events = 0
        self.wanted: Collection[Key] = ()
        self.met: set[Key] = set()

    def hold(self, request: UUID) -> bool:
        """Whether the events of a request, by the time in its id, are in files."""
        return any(low <= request < high for low, high in self._spans)

    def rows(self, bounds: Bounds) -> Iterator[Sequence[Any]]:
        """EVENT_COLUMNS and the seal of those within, file by file. A file with none is not opened.
        What is wrong with a file is told."""
        sieve = None if bounds.everything else _Sieve(bounds)
        parts = [each for each in self._parts if sieve is None or sieve.may_hold(each)]
        objects = open_object_store(self._location) if parts else None
        for part in parts:
            assert objects is not None  # there are parts
            content = self._fetch(objects, part)
            if content is not None:
                yield from self._rows_of(part, content, sieve)

    def _fetch(self, objects: ObjectStore, part: Part) -> bytes | None:
        """None, and said, where there is no file or another."""
        try:
            content = bytes(obstore.get(objects, part.path).bytes())
        except FileNotFoundError:
            self._tell(Kind.ARCHIVE_MISSING, part, "a file", "none")
            return None
        except (BaseError, OSError) as error:
            self._tell(Kind.ARCHIVE_MISSING, part, "a file", str(error).splitlines()[0])
            return None
        digest = sha256(content).hexdigest()
        if digest != part.sha256:
            self._tell(Kind.ARCHIVE_WRONG, part, f"SHA-256 {part.sha256}", digest)
            return None
        return content

    def _rows_of(self, part: Part, content: bytes, sieve: _Sieve | None) -> Iterator[Sequence[Any]]:
        tally = Tally()
        try:
            for event in events_in(content):
                tally.add(event)
                values = event.values
                if values[:2] in self.wanted:
                    self.met.add(values[:2])
                if sieve is None or sieve.holds(values[2], values[4].astimezone(UTC).date()):
                    self.events += 1
                    yield (*values, event.seal)
        except ArchiveError as error:
            self._tell(Kind.ARCHIVE_WRONG, part, "lines of events", str(error))
            return
        empty = datetime(part.month.year, part.month.month, 1, tzinfo=UTC)
        told = part.bytes, part.rows, part.sums, part.first_event, part.last_event
        read = len(content), tally.rows, tally.sums, tally.first or empty, tally.last or empty
        if told != read:
            self._tell(Kind.ARCHIVE_WRONG, part, _said(told), _said(read))
        name = rf"{part.month:%Y-%m}-{part.part}(-[0-9a-f]+)?\.jsonl\.gz"
        its_own = re.fullmatch(name, part.path.rpartition("/")[2])
        if not its_own or part.month.day != 1:
            name = f"the archive of {part.month}, part {part.part}"
            self._tell(Kind.ARCHIVE_WRONG, part, name, part.path)

    def _tell(self, kind: Kind, part: Part, expected: str, there: str) -> None:
        said = part.path, expected, there
        if said not in self._told:
            self._told.add(said)
            self._found.add(kind, None, part.month, part.path, expected, there)


class _Sieve:
    """What lies within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._windows: dict[int, list[Window]] = {}
        for each in bounds.windows or ():
            self._windows.setdefault(each.tenant_no, []).append(each)

    def holds(self, tenant_no: int, day: date) -> bool:
        bounds = self._bounds
        if bounds.windows is not None:
            mine = self._windows.get(tenant_no, ())
            return any(each.first <= day <= each.last for each in mine)
        return bounds.tenant_no in (None, tenant_no) and _overlap(bounds, day, day)

    def may_hold(self, part: Part) -> bool:
        begin, end = part.first_event.astimezone(UTC).date(), part.last_event.astimezone(UTC).date()
        if self._bounds.windows is None:
            return _overlap(self._bounds, begin, end)
        return any(_overlap(each, begin, end) for each in self._bounds.windows)


def _overlap(span: Bounds | Window, begin: date, end: date) -> bool:
    return (span.first is None or span.first <= end) and (span.last is None or begin <= span.last)


def _said(values: tuple[int, int, dict[str, Any], datetime, datetime]) -> str:
    size, rows, sums, first, last = values
    return f"{size} bytes, {rows} events from {first} to {last}, {sums}"
