"""When usage is in the books, to the invoices: whoever stores or rates usage of a tenant holds a
shared lock until the commit, and an invoice takes what is there under the same lock alone. So what
was booked by the time of the taking is on that invoice, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from zlib import crc32

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock, lock_all_shared

PLACES = 16
"""A tenant's lock is one of so many: a batch of usage of many tenants takes few, in one order."""


async def begin_booking(session: AsyncSession, tenants: Iterable[str] | None = None) -> datetime:
    """Before usage of these tenants (None: of any) is written or rated, and before prices are
    locked; the time at which it counts as booked."""
    places = range(PLACES) if tenants is None else sorted({_place(each) for each in tenants})
    await lock_all_shared(session, [_name(place) for place in places])
    return await clock(session)


async def begin_taking(session: AsyncSession, tenant_id: str) -> datetime:
    """Before an invoice takes the tenant's usage; the time until which usage was booked."""
    await lock(session, _name(_place(tenant_id)))
    return await clock(session)


async def clock(session: AsyncSession) -> datetime:
    """The database's, at this moment."""
    now: datetime | None = await session.scalar(select(func.clock_timestamp()))
    assert now is not None
    return now


def _place(tenant_id: str) -> int:
    return crc32(tenant_id.encode()) % PLACES


def _name(place: int) -> str:
    return f"booking:{place:02d}"
