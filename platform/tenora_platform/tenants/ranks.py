"""By what tenants are sorted where that is a sum over everybody's usage: remembered for seconds,
for it takes the longer, the more there is. Only orders come from here; what is shown is read
anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from operator import add
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Integer, Select, any_, func, literal, select

from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.db import Database, in_slices
from tenora_platform.remembered import Remembered
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tables import UsageDayRow

KEPT_S = 10.0
_KEPT_MAX = 8
"""Months, currencies: nobody sorts by many at once."""

AMOUNT: ColumnElement[Decimal] = reduce(
    add, (getattr(UsageDayRow, column) for column in AMOUNTS.values())
)
"""What a row of sums comes to, over all meters."""


@dataclass(frozen=True, slots=True)
class Days:
    """From `first` until before `end`, UTC; `today` is the day of which requests are counted."""

    first: date
    end: date
    today: date


def month_days(month: date, now: datetime) -> Days:
    """The month that begins on this day."""
    end = (month + timedelta(days=31)).replace(day=1)
    return Days(month, end, now.astimezone(UTC).date())


def this_month(now: datetime) -> Days:
    return month_days(now.astimezone(UTC).date().replace(day=1), now)


Values = Mapping[str, Decimal]
"""By tenant, those with nothing left out."""


class Ranks:
    """One for each process; another may be `KEPT_S` apart, as two pages of a list may be."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._kept: Remembered[Values] = Remembered(KEPT_S, _KEPT_MAX)

    async def spent(self, days: Days, currency: str) -> Values:
        """In one currency."""
        return await self._values(days, currency)

    async def requests(self, days: Days) -> Values:
        """Those of today."""
        return await self._values(days, "")

    async def _values(self, days: Days, currency: str) -> Values:
        return await self._kept.get((days, currency), lambda: self._read(days, currency))

    async def _read(self, days: Days, currency: str) -> Values:
        async with self._db.admin_session() as session:
            query = _requests(days)
            if currency:
                nos = select(PriceVersionRow.no).where(PriceVersionRow.currency == currency)
                query = _spent(days, list(await session.scalars(nos)))
            return {tenant: value async for tenant, value in in_slices(session, query)}


def _requests(days: Days) -> Select[*tuple[Any, ...]]:
    return (
        select(UsageDayRow.tenant_id, func.sum(UsageDayRow.requests))
        .where(UsageDayRow.day == days.today)
        .group_by(UsageDayRow.tenant_id)
    )


def _spent(days: Days, nos: list[int]) -> Select[*tuple[Any, ...]]:
    return (
        select(UsageDayRow.tenant_id, func.sum(AMOUNT))
        .where(
            UsageDayRow.day >= days.first,
            UsageDayRow.day < days.end,
            UsageDayRow.price_version_no == any_(literal(nos, ARRAY(Integer))),
        )
        .group_by(UsageDayRow.tenant_id)
    )
