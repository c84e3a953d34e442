"""Queries over events that wait for a price. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import Billable, Rating
from tenora_platform.usage.records import stored_billable
from tenora_platform.usage.seal import EVENT_COLUMNS, Seals
from tenora_platform.usage.tables import (
    LateRatingRow,
    UnratedEventRow,
    UsageEventRow,
    UsageSeriesRow,
)


class Waiting(NamedTuple):
    """One that waits, and the event."""

    mark: UnratedEventRow
    row: UsageEventRow
    series: UsageSeriesRow

    @property
    def billable(self) -> Billable:
        return stored_billable(self.row, self.series)


_WAITING = (
    select(UnratedEventRow, UsageEventRow, UsageSeriesRow)
    .join(
        UsageEventRow,
        (UsageEventRow.request == UnratedEventRow.request)
        & (UsageEventRow.sequence == UnratedEventRow.sequence),
    )
    .join(UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id)
)


async def add_unrated(
    session: AsyncSession, unrated: Sequence[tuple[str, tuple[UUID, int], str]]
) -> None:
    """(tenant, request and sequence, why) of new events that cannot be rated."""
    if not unrated:
        return
    values = [
        {"tenant_id": tenant, "request": request, "sequence": sequence, "reason": reason}
        for tenant, (request, sequence), reason in unrated
    ]
    await session.execute(insert(UnratedEventRow).values(values))


async def take_unrated(session: AsyncSession, after: int, limit: int) -> list[Waiting]:
    """Events that wait for a price, the oldest first, locked until the transaction ends; those that
    another worker has are left out."""
    query = (
        _WAITING.where(UnratedEventRow.no > after)
        .order_by(UnratedEventRow.no)
        .limit(limit)
        .with_for_update(of=UnratedEventRow, key_share=True, skip_locked=True)
    )
    return [Waiting(*each) for each in await session.execute(query)]


async def next_unrated(session: AsyncSession, after: int) -> int | None:
    """The number of the first that waits after this one."""
    query = select(func.min(UnratedEventRow.no)).where(UnratedEventRow.no > after)
    found: int | None = await session.scalar(query)
    return found


async def count_unrated(session: AsyncSession) -> int:
    return await session.scalar(select(func.count()).select_from(UnratedEventRow)) or 0


async def last_unrated(session: AsyncSession, limit: int) -> list[Waiting]:
    """The newest that wait."""
    query = _WAITING.order_by(UnratedEventRow.since.desc(), UnratedEventRow.no.desc())
    return [Waiting(*each) for each in await session.execute(query.limit(limit))]


async def set_ratings(
    session: AsyncSession, seals: Seals, rated: Sequence[tuple[Waiting, Rating]], now: datetime
) -> None:
    """They wait no more, and count as booked at `now`. Once for each event, which the database sees
    to as well."""
    if not rated:
        return
    columns: dict[str, list[object]] = {
        name: [] for name in ("request", "sequence", "version", "amount", "positions", "seal")
    }
    for waiting, rating in rated:
        row = waiting.row
        values = [getattr(row, name) for name in EVENT_COLUMNS[:-3]]
        values += [rating.price_version_no, rating.amount, rating.positions]
        columns["request"].append(row.request)
        columns["sequence"].append(row.sequence)
        columns["version"].append(rating.price_version_no)
        columns["amount"].append(rating.amount)
        columns["positions"].append(array_text(rating.positions))
        columns["seal"].append(seals.event(values))
    await session.execute(_SET, columns)
    late = [(each.mark.tenant_id, each.row.request, each.row.sequence) for each, _ in rated]
    await note_late(session, late, now)
    await session.execute(
        delete(UnratedEventRow).where(UnratedEventRow.no.in_([each.mark.no for each, _ in rated]))
    )


NO_SEQUENCE = -1
"""Of occupancy, which no request caused: its id stands for one."""


async def note_late(
    session: AsyncSession, events: Sequence[tuple[str, UUID, int]], now: datetime
) -> None:
    """That these events (tenant, request, sequence) were rated after they had been stored."""
    values = [
        {"tenant_id": tenant, "request": request, "sequence": sequence, "rated_at": now}
        for tenant, request, sequence in events
    ]
    await session.execute(insert(LateRatingRow).values(values))


def array_text(numbers: Sequence[int] | None) -> str | None:
    """As PostgreSQL reads an array: a list of lists would have to be rectangular."""
    return None if numbers is None else "{" + ",".join(map(str, numbers)) + "}"


_SET = text(
    """
    UPDATE usage_events e
    SET price_version_no = n.version, amount = n.amount,
        positions = CAST(n.positions AS bigint[]), seal = n.seal
    FROM unnest(
      CAST(:request AS uuid[]), CAST(:sequence AS integer[]), CAST(:version AS integer[]),
      CAST(:amount AS numeric[]), CAST(:positions AS text[]), CAST(:seal AS bigint[])
    ) AS n (request, sequence, version, amount, positions, seal)
    WHERE e.request = n.request AND e.sequence = n.sequence
    """
)
