"""What the database knows of money spent: sums of rated lines by account, the events of lately, and
grants of credit. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import ARRAY, Select, Text, any_, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import RatedLineRow
from tenora_platform.budgets.accounts import Charge
from tenora_platform.budgets.tables import CreditGrantRow
from tenora_platform.usage.tables import UsageEventRow

_NANO = 10**9


@dataclass(frozen=True, slots=True)
class Span:
    """Of one account: events that ended from `start` until before `end`, of one key or of all."""

    start: datetime
    end: datetime | None = None
    key_id: str | None = None


def _events(tenant_id: str) -> Select[str, str | None, datetime, Decimal]:
    """Every rated event: id, key, time and nanos, its whole amount rounded up once. One whose
    meters did not move has no lines, and is rated all the same."""
    amount = func.coalesce(func.sum(RatedLineRow.amount), 0)
    nanos = func.ceil(amount * _NANO).label("nanos")
    still = (UsageEventRow.prompt_tokens == 0) & (UsageEventRow.output_tokens == 0)
    return (
        select(UsageEventRow.event_id, UsageEventRow.api_key_id, UsageEventRow.event_time, nanos)
        .outerjoin(RatedLineRow, RatedLineRow.event_id == UsageEventRow.event_id)
        .where(UsageEventRow.tenant_id == tenant_id, or_(RatedLineRow.event_id.is_not(None), still))
        .group_by(UsageEventRow.event_id)
    )


async def spent(session: AsyncSession, tenant_id: str, span: Span) -> int:
    """Nanos."""
    query = _events(tenant_id).where(UsageEventRow.event_time >= span.start)
    if span.end is not None:
        query = query.where(UsageEventRow.event_time < span.end)
    if span.key_id is not None:
        query = query.where(UsageEventRow.api_key_id == span.key_id)
    events = query.subquery()
    return int(await session.scalar(select(func.coalesce(func.sum(events.c.nanos), 0))) or 0)


async def lately_stored(
    session: AsyncSession, tenant_id: str, *, within: timedelta, ids: Sequence[str]
) -> list[Charge]:
    """The rated events that were stored within this time, and those of `ids`."""
    new = (UsageEventRow.ingested_at >= func.now() - within) & (
        # The index is by this one; what ended longer before it was stored, `ids` has.
        UsageEventRow.event_time >= func.now() - 30 * within
    )
    query = _events(tenant_id).where(
        or_(new, UsageEventRow.event_id == any_(literal(list(ids), ARRAY(Text))))
    )
    return [
        Charge(event_id=event_id, tenant_id=tenant_id, key_id=key or "", at=at, nanos=int(nanos))
        for event_id, key, at, nanos in await session.execute(query)
    ]


async def amounts_spent(
    session: AsyncSession, tenant_id: str, start: datetime, end: datetime
) -> dict[str, Decimal]:
    """Of the events that ended in between, by currency, to all twelve decimals."""
    query = (
        select(RatedLineRow.currency, func.sum(RatedLineRow.amount))
        .join(UsageEventRow, RatedLineRow.event_id == UsageEventRow.event_id)
        .where(
            UsageEventRow.tenant_id == tenant_id,
            UsageEventRow.event_time >= start,
            UsageEventRow.event_time < end,
        )
        .group_by(RatedLineRow.currency)
    )
    return dict((await session.execute(query)).all())


async def grants(
    session: AsyncSession, tenant_id: str, *, lock: bool = False
) -> list[CreditGrantRow]:
    """All of a tenant's, the oldest first."""
    query = (
        select(CreditGrantRow)
        .where(CreditGrantRow.tenant_id == tenant_id)
        .order_by(CreditGrantRow.created_at, CreditGrantRow.id)
    )
    return list(await session.scalars(query.with_for_update() if lock else query))


async def list_grants(
    session: AsyncSession, tenant_id: str, *, after: str | None, limit: int
) -> list[CreditGrantRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(CreditGrantRow)
        .where(CreditGrantRow.tenant_id == tenant_id)
        .order_by(CreditGrantRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(CreditGrantRow.id < after)
    return list(await session.scalars(query))
