"""Sums of usage by hour and day, moved in the transaction in which events are stored or rated. What
is added here is all that a sum consists of: sums made anew from events are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import Billable, Rating, exact_sum

COUNTS = ("requests", "sequences", "unrated", "charged_nanos")
"""Meters that are counted and not priced: requests as they were sent (their first sequence),
sequences, how many of them wait for a price, and what they cost in nanos, each rounded up once."""


class Key(NamedTuple):
    """One row of usage_hours."""

    tenant_id: str
    hour: datetime
    series_id: int
    meter: str
    price_version_no: int


class Move(NamedTuple):
    """What one event adds of one meter."""

    meter: str
    price_version_no: int
    quantity: int
    amount: Decimal


_FREE = Decimal(0)


def moves(event: Billable, rating: Rating | None, sequence: int | None) -> Iterator[Move]:
    """Of one event; `rating` None: it waits for a price, `sequence` None: it is of no request."""
    version = 0 if rating is None else rating.price_version_no
    if sequence is not None:
        yield Move("sequences", version, 1, _FREE)
        if sequence == 0:
            yield Move("requests", version, 1, _FREE)
    if rating is None:
        yield Move("unrated", 0, 1, _FREE)
        for meter, quantity in event.quantities().items():
            if quantity:
                yield Move(meter, 0, quantity, _FREE)
        return
    if nanos := rating.nanos:
        yield Move("charged_nanos", version, nanos, _FREE)
    for line in rating.lines:
        yield Move(line.meter, version, line.quantity, line.amount)


class Sums:
    """What a transaction adds to the sums, put together before it is written."""

    def __init__(self) -> None:
        self.quantities: defaultdict[Key, int] = defaultdict(int)
        self.amounts: defaultdict[Key, Decimal] = defaultdict(Decimal)

    def add(
        self, event: Billable, series_id: int, rating: Rating | None, sequence: int | None
    ) -> None:
        self._move(event, series_id, moves(event, rating, sequence), 1)

    def take(
        self, event: Billable, series_id: int, rating: Rating | None, sequence: int | None
    ) -> None:
        """The opposite: what was added before."""
        self._move(event, series_id, moves(event, rating, sequence), -1)

    def _move(self, event: Billable, series_id: int, moved: Iterable[Move], sign: int) -> None:
        time = event.event_time.astimezone(UTC)
        hour = time.replace(minute=0, second=0, microsecond=0)
        for meter, version, quantity, amount in moved:
            key = Key(event.tenant_id, hour, series_id, meter, version)
            self.put(key, sign * quantity, sign * amount)

    def put(self, key: Key, quantity: int, amount: Decimal) -> None:
        self.quantities[key] += quantity
        if amount:
            self.amounts[key] = exact_sum((self.amounts[key], amount))

    def days(self) -> Sums:
        """The same by day: `hour` is a day's first."""
        found = Sums()
        for key, quantity in self.quantities.items():
            day = key._replace(hour=key.hour.replace(hour=0))
            found.put(day, quantity, self.amounts.get(key, _FREE))
        return found

    async def write(self, session: AsyncSession) -> None:
        """Add to the tables, and say that the ledger has something to do. In one order whoever
        writes, so that two never wait for each other."""
        if not self.quantities:
            return
        days = self.days()
        await session.execute(_ADD_HOURS, self._columns())
        await session.execute(_ADD_DAYS, days._columns())
        due = sorted({(key.tenant_id, key.hour.date()) for key in days.quantities})
        await session.execute(
            _ADD_DUE, {"tenant": [tenant for tenant, _ in due], "day": [day for _, day in due]}
        )

    def _columns(self) -> dict[str, Any]:
        keys = sorted(self.quantities)
        return {
            "tenant": [key.tenant_id for key in keys],
            "begin": [key.hour for key in keys],
            "series": [key.series_id for key in keys],
            "meter": [key.meter for key in keys],
            "version": [key.price_version_no for key in keys],
            "quantity": [self.quantities[key] for key in keys],
            "amount": [self.amounts.get(key, _FREE) for key in keys],
        }


def _add(table: str, unit: str, begin: str) -> str:
    return f"""
    INSERT INTO {table} AS old
      (tenant_id, {unit}, series_id, meter, price_version_no, quantity, amount)
    SELECT tenant, {begin}, series, meter, version, quantity, amount FROM unnest(
      CAST(:tenant AS text[]), CAST(:begin AS timestamptz[]), CAST(:series AS integer[]),
      CAST(:meter AS text[]), CAST(:version AS integer[]), CAST(:quantity AS bigint[]),
      CAST(:amount AS numeric[])
    ) AS new (tenant, begins, series, meter, version, quantity, amount)
    ON CONFLICT (tenant_id, {unit}, series_id, meter, price_version_no) DO UPDATE
    SET quantity = old.quantity + excluded.quantity, amount = old.amount + excluded.amount
    """


_ADD_HOURS = text(_add("usage_hours", "hour", "begins"))
_ADD_DAYS = text(_add("usage_days", "day", "CAST(begins AT TIME ZONE 'UTC' AS date)"))
_ADD_DUE = text(
    """
    INSERT INTO ledger_due (tenant_id, day)
    SELECT tenant, day FROM unnest(CAST(:tenant AS text[]), CAST(:day AS date[])) AS d (tenant, day)
    ON CONFLICT (tenant_id, day) DO UPDATE SET since = now()
    """
)
