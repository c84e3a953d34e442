"""Archives of usage: a month's events as gzipped JSON lines in the object store, written, read back
and compared before anything may be dropped, and read again for whoever proves sums. A line is an
event as its row was, seal and all, with its tenant and its id. Drops nothing itself."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from operator import attrgetter
from typing import Annotated, Any
from uuid import UUID

import msgspec
import obstore
from obstore.store import ObjectStore
from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.db import Database
from tenora_platform.usage.ids import event_text
from tenora_platform.usage.seal import EVENT_COLUMNS, Seals
from tenora_platform.usage.tables import UsageArchiveRow, UsageEventRow, UsageSeriesRow

PART_ROWS = 250_000
"""About 15 MB of a file: what reading one takes of memory."""

_AT_ONCE = 5000
_COLUMNS = (*EVENT_COLUMNS, "seal")
_TOKENS = [
    EVENT_COLUMNS.index(name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")
]
_AMOUNT = EVENT_COLUMNS.index("amount")
_EVENT_TIME = EVENT_COLUMNS.index("event_time")


class ArchiveError(Exception):
    """A file is not what was written, or an event is not what was sealed; says which."""


@dataclass(frozen=True, slots=True)
class ArchivedEvent:
    """An event as its row was: the values of EVENT_COLUMNS and the seal, as they were read."""

    tenant_id: str
    event_id: str
    values: tuple[Any, ...]
    seal: int

    @property
    def row(self) -> UsageEventRow:
        """As it was; of no session."""
        return UsageEventRow(**dict(zip(EVENT_COLUMNS, self.values, strict=True)), seal=self.seal)


_Small = Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Real = Annotated[float, msgspec.Meta(gt=-1e38, lt=1e38)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Line(msgspec.Struct):
    """A line of a file: EVENT_COLUMNS as their table has them, and the seal."""

    event_id: str
    tenant_id: str
    request: UUID
    sequence: _Int
    tenant_no: _Int
    series_id: _Int
    event_time: _Time
    ingested_at: _Time
    prompt_tokens: _Int
    cached_tokens: _Int
    output_tokens: _Int
    max_tokens: _Int | None
    cold_loads: _Small
    finish_reason: str
    residency: str | None
    queue_ms: _Real
    adapter_load_ms: _Real
    first_token_ms: _Real | None
    duration_ms: _Real
    preemptions: _Small
    x_request_id: str | None
    price_version_no: _Int | None
    amount: Decimal | None
    positions: list[_Long] | None
    seal: _Long
    sequences: _Int | None = None  # older files do not say it


_read_line = msgspec.json.Decoder(_Line).decode
_values_of = attrgetter(*EVENT_COLUMNS)


@dataclass
class Tally:
    """What is compared of events that were written with those that are read back."""

    rows: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0, 0])
    amount: Decimal = Decimal(0)
    first: datetime | None = None
    last: datetime | None = None

    def add(self, event: ArchivedEvent) -> None:
        values = event.values
        self.rows += 1
        for place, column in enumerate(_TOKENS):
            self.tokens[place] += values[column]
        self.amount = exact_sum((self.amount, values[_AMOUNT] or Decimal(0)))
        at = values[_EVENT_TIME]
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)

    @property
    def sums(self) -> dict[str, Any]:
        prompt, cached, output = self.tokens
        return {
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "output_tokens": output,
            "amount": f"{self.amount:.12f}",
        }


def part_name(month: date, number: int, digest: str) -> str:
    """Name a part's file by its content: a database that was restored, or begun anew beside an old
    store, archives the same month again and must not overwrite what another has let go."""
    return f"{month:%Y-%m}-{number}-{digest[:16]}.jsonl.gz"


class UsageArchive:
    """Of one installation."""

    def __init__(self, db: Database, objects: ObjectStore, installation: str) -> None:
        self._db = db
        self._objects = objects
        self._folder = f"usage-archive/{installation}"
        self._seals = Seals(db.secret)

    async def write(self, month: date, low: UUID, high: UUID) -> int:
        """Write all events of the requests from `low` until before `high`, whatever had been
        written of them before, and prove it; returns how many. Raises ArchiveError for an event
        whose seal is broken: it stays where it can be looked at."""
        made: list[UsageArchiveRow] = []
        async with self._db.patient().admin_session() as session:
            batch: list[ArchivedEvent] = []
            async for event in _stored(session, low, high):
                self._check(event)
                batch.append(event)
                if len(batch) == PART_ROWS:
                    made.append(await self._write_part(month, len(made), batch))
                    batch = []
            if batch or not made:
                made.append(await self._write_part(month, len(made), batch))
        for row in made:
            await self._prove(row)
        async with self._db.admin_session() as session:
            await session.execute(delete(UsageArchiveRow).where(UsageArchiveRow.month == month))
            session.add_all(made)
        return sum(row.rows for row in made)

    async def _write_part(
        self, month: date, number: int, events: Sequence[ArchivedEvent]
    ) -> UsageArchiveRow:
        tally = Tally()
        for event in events:
            tally.add(event)
        content = await asyncio.to_thread(_packed, events)
        digest = sha256(content).hexdigest()
        path = f"{self._folder}/{part_name(month, number, digest)}"
        await obstore.put_async(self._objects, path, content)
        moment = datetime(month.year, month.month, 1, tzinfo=UTC)
        return UsageArchiveRow(
            month=month,
            part=number,
            path=path,
            sha256=digest,
            bytes=len(content),
            rows=tally.rows,
            sums=tally.sums,
            first_event=tally.first or moment,
            last_event=tally.last or moment,
        )

    async def _prove(self, row: UsageArchiveRow) -> None:
        """Read the file back: its digest, the seal of each event, and their sums."""
        tally = Tally()
        async for event in self.read(row):
            tally.add(event)
        if (tally.rows, tally.sums) != (row.rows, row.sums):
            raise ArchiveError(f"{row.path} does not contain the events it was written with")

    async def parts(self, session: AsyncSession, *, dropped: bool = True) -> list[UsageArchiveRow]:
        """The files, oldest first; with `dropped` only those of which the database has no events
        any more."""
        query = select(UsageArchiveRow).order_by(UsageArchiveRow.month, UsageArchiveRow.part)
        if dropped:
            query = query.where(UsageArchiveRow.dropped_at.is_not(None))
        return list(await session.scalars(query))

    async def read(self, row: UsageArchiveRow) -> AsyncIterator[ArchivedEvent]:
        """The events of one file. Raises ArchiveError where the file is missing or another, and for
        an event whose seal is broken."""
        try:
            found = await obstore.get_async(self._objects, row.path)
            content = bytes(await found.bytes_async())
        except FileNotFoundError as error:
            raise ArchiveError(f"{row.path} is missing") from error
        if sha256(content).hexdigest() != row.sha256:
            raise ArchiveError(f"{row.path} is not the file that was written")
        for number, event in enumerate(events_in(content)):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others of this process wait
            self._check(event)
            yield event

    def _check(self, event: ArchivedEvent) -> None:
        if self._seals.event(event.values) != event.seal:
            raise ArchiveError(f"the seal of event {event.event_id} does not match")


def _of_month(low: UUID, high: UUID) -> Select[Any]:
    return (
        select(
            UsageSeriesRow.tenant_id,
            UsageSeriesRow.kind,
            *(getattr(UsageEventRow, name) for name in _COLUMNS),
        )
        .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
        .where(UsageEventRow.request >= low, UsageEventRow.request < high)
        .order_by(UsageEventRow.request, UsageEventRow.sequence)
        .execution_options(yield_per=_AT_ONCE)
    )


async def _stored(session: AsyncSession, low: UUID, high: UUID) -> AsyncIterator[ArchivedEvent]:
    async for row in await session.stream(_of_month(low, high)):
        tenant_id, kind, *values, seal = row
        yield ArchivedEvent(tenant_id, event_text(kind, values[0], values[1]), tuple(values), seal)


def _packed(events: Sequence[ArchivedEvent]) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        for event in events:
            named = dict(zip(EVENT_COLUMNS, event.values, strict=True))
            line = {"event_id": event.event_id, "tenant_id": event.tenant_id, **named}
            text = json.dumps({**line, "seal": event.seal}, default=_plain, separators=(",", ":"))
            file.write(text.encode() + b"\n")
    return buffer.getvalue()


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:.12f}"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def events_in(content: bytes) -> Iterator[ArchivedEvent]:
    """Of a file, as they come; no seal is looked at. Raises ArchiveError where it is none of
    ours."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            for line in file:
                read = _read_line(line)
                yield ArchivedEvent(read.tenant_id, read.event_id, _values_of(read), read.seal)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise ArchiveError(f"it cannot be read as JSON lines of events: {error}") from error
