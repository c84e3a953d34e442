"""Series: everything of usage events that repeats, stored once and found by a number. Knows which
number a process has seen; what a series is billed is not its matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database
from tenora_platform.tenants.tables import TenantRow
from tenora_platform.usage.seal import Seals
from tenora_platform.usage.tables import UsageSeriesRow

_KEPT_MAX = 50_000


@dataclass(frozen=True, slots=True)
class Series:
    """Who used what, and how it was asked for."""

    tenant_id: str
    kind: str  # of the request's id: chatcmpl, ...; residency, stored
    model: str  # the base model's id
    class_: str  # that really served; "" of storage
    asked_model: str | None = None  # as the client wrote it
    alias: str | None = None
    adapter_id: str | None = None
    adapter_version_id: str | None = None
    adapter_digest: str | None = None  # what really ran
    api_key_id: str | None = None
    plan: str | None = None
    asked_class: str | None = None


_NAMES = tuple(field.name for field in fields(Series))
_values = attrgetter(*_NAMES)


class Place(NamedTuple):
    """Where the events of a series are booked."""

    tenant_no: int
    series_id: int


class SeriesBook:
    """One for each writer of events. Remembers what it has placed, which never changes."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seals = Seals(db.secret)
        self._kept: dict[Series, Place] = {}

    async def places(self, wanted: Iterable[Series]) -> dict[Series, Place]:
        """Makes those that are new, in a transaction of its own, so that what is remembered is
        there. Those of a tenant that does not exist are left out."""
        every = set(wanted)
        found = {each: self._kept[each] for each in every if each in self._kept}
        new = every - found.keys()
        if new:
            async with self._db.admin_session() as session:
                placed = await place(session, self._seals, list(new))
            if len(self._kept) + len(placed) > _KEPT_MAX:
                self._kept.clear()
            self._kept |= placed
            found |= placed
        return found


def holds(seals: Seals, row: UsageSeriesRow) -> bool:
    """Whether a series says what it said when it was made."""
    return seals.series(_values(row)) == row.key


async def place(
    session: AsyncSession, seals: Seals, wanted: Sequence[Series]
) -> dict[Series, Place]:
    """As `SeriesBook.places`, in the caller's transaction."""
    query = select(TenantRow.id, TenantRow.no).where(
        TenantRow.id.in_({each.tenant_id for each in wanted})
    )
    numbers = {row.id: row.no for row in await session.execute(query)}
    keys = {seals.series(_values(each)): each for each in wanted if each.tenant_id in numbers}
    if not keys:
        return {}
    rows = [
        {"key": key, **{name.rstrip("_"): getattr(each, name) for name in _NAMES}}
        for key, each in sorted(keys.items())
    ]
    await session.execute(insert(UsageSeriesRow).values(rows).on_conflict_do_nothing())
    there = select(UsageSeriesRow.key, UsageSeriesRow.id).where(
        tuple_(UsageSeriesRow.tenant_id, UsageSeriesRow.key).in_(
            [(each.tenant_id, key) for key, each in keys.items()]
        )
    )
    return {
        keys[key]: Place(numbers[keys[key].tenant_id], series_id)
        for key, series_id in await session.execute(there)
    }
