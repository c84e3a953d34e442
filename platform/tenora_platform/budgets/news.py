"""Whether reaching an amount is news to a tenant: it is none if an event of the same budget and
period has told of as much spending already, whatever the amount was then. So rewriting a budget
tells nothing again; spending beyond what was told does."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import ColumnElement, Numeric, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.events.tables import EventRow

SPENT: ColumnElement[Decimal] = EventRow.data["spent"].astext.cast(Numeric)
PERCENT: ColumnElement[Decimal] = 100 * SPENT / EventRow.data["amount"].astext.cast(Numeric)
"""Of an account budget's amount."""


def of_period(
    tenant_id: str, type: str, period: str, currency: str | None
) -> list[ColumnElement[bool]]:
    """The events of one budget and period: their `once` begins with `period` and a space."""
    return [
        EventRow.tenant_id == tenant_id,
        EventRow.type == type,
        EventRow.once.startswith(f"{period} ", autoescape=True),
        EventRow.data["currency"].astext.is_not_distinct_from(currency),
    ]


async def most_told(
    session: AsyncSession,
    tenant_id: str,
    type: str,
    period: str,
    currency: str | None,
    what: ColumnElement[Decimal] = SPENT,
) -> Decimal:
    """The most spending that its events have told of; -1 where there is none."""
    query = select(func.max(what)).where(*of_period(tenant_id, type, period, currency))
    most: Decimal | None = await session.scalar(query)
    return Decimal(-1) if most is None else most
