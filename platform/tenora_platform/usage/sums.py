"""Sums of usage by hour and day, moved in the transaction in which events are stored or rated. What
is added here is all that a sum consists of: sums made anew from events are equal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import METERS
from tenora_platform.billing.rating import Billable, Rating, exact_sum

_FREE = Decimal(0)
COUNTS = ("requests", "sequences", "unrated", "charged_nanos")
"""Meters that are counted and not priced: requests as they were sent (their first sequence),
sequences, how many of them wait for a price, and what they cost in nanos, each rounded up once."""


AMOUNTS: Mapping[str, str] = {meter: f"{meter}_amount" for meter in METERS}
"""The columns of what each meter costs; its quantity's has its name."""
_PRICED = frozenset(AMOUNTS.values())


class Key(NamedTuple):
    """One row of usage_hours."""

    tenant_id: str
    hour: datetime
    series_id: int
    price_version_no: int


class Move(NamedTuple):
    """What one event adds of one meter."""

    meter: str
    price_version_no: int
    quantity: int
    amount: Decimal


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
    """What a transaction adds to the sums, put together before it is written: by row what each
    column gains."""

    def __init__(self) -> None:
        self.rows: defaultdict[Key, dict[str, int | Decimal]] = defaultdict(dict)

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
            key = Key(event.tenant_id, hour, series_id, version)
            self.put(key, meter, sign * quantity, sign * amount)

    def put(self, key: Key, meter: str, quantity: int, amount: Decimal = _FREE) -> None:
        row = self.rows[key]
        row[meter] = row.get(meter, 0) + quantity
        if amount:
            _add_amount(row, AMOUNTS[meter], amount)

    def days(self) -> Sums:
        """The same by day: `hour` is a day's first."""
        found = Sums()
        for key, row in self.rows.items():
            day = found.rows[key._replace(hour=key.hour.replace(hour=0))]
            for column, gain in row.items():
                if isinstance(gain, Decimal):
                    _add_amount(day, column, gain)
                else:
                    day[column] = day.get(column, 0) + gain
        return found

    async def write(self, session: AsyncSession) -> None:
        """Add to the tables, and say that the ledger has something to do. In one order whoever
        writes, so that two never wait for each other."""
        if not self.rows:
            return
        days = self.days()
        for sums, table in ((self, "usage_hours"), (days, "usage_days")):
            columns = sorted({column for row in sums.rows.values() for column in row})
            await session.execute(_addition(table, tuple(columns)), sums._values(columns))
        due = sorted({(key.tenant_id, key.hour.date()) for key in days.rows})
        await session.execute(
            _ADD_DUE, {"tenant": [tenant for tenant, _ in due], "day": [day for _, day in due]}
        )

    def _values(self, columns: Sequence[str]) -> dict[str, Any]:
        keys = sorted(self.rows)
        return {
            "tenant": [key.tenant_id for key in keys],
            "begin": [key.hour for key in keys],
            "series": [key.series_id for key in keys],
            "version": [key.price_version_no for key in keys],
            **{column: self._gains(column, keys) for column in columns},
        }

    def _gains(self, column: str, keys: Sequence[Key]) -> list[int | Decimal]:
        none = _FREE if column in _PRICED else 0  # arrays are of one type
        return [self.rows[key].get(column, none) for key in keys]


def _add_amount(row: dict[str, int | Decimal], column: str, amount: Decimal) -> None:
    row[column] = exact_sum((Decimal(row.get(column, 0)), amount))


@cache
def _addition(table: str, columns: tuple[str, ...]) -> TextClause:
    """Adds to these columns of usage_hours or usage_days, and makes the rows that are not there."""
    unit, begin = "hour", "begins"
    if table == "usage_days":
        unit, begin = "day", "CAST(begins AT TIME ZONE 'UTC' AS date)"
    types = {column: "numeric" if column in _PRICED else "bigint" for column in columns}
    arrays = ", ".join(f"CAST(:{column} AS {of}[])" for column, of in types.items())
    named = ", ".join(columns)
    return text(
        f"""
        INSERT INTO {table} AS old (tenant_id, {unit}, series_id, price_version_no, {named})
        SELECT tenant, {begin}, series, version, {named} FROM unnest(
          CAST(:tenant AS text[]), CAST(:begin AS timestamptz[]), CAST(:series AS integer[]),
          CAST(:version AS integer[]), {arrays}
        ) AS new (tenant, begins, series, version, {named})
        ON CONFLICT (tenant_id, {unit}, series_id, price_version_no) DO UPDATE
        SET {", ".join(f"{column} = old.{column} + excluded.{column}" for column in columns)}
        """
    )


_ADD_DUE = text(
    """
    INSERT INTO ledger_due (tenant_id, day)
    SELECT tenant, day FROM unnest(CAST(:tenant AS text[]), CAST(:day AS date[])) AS d (tenant, day)
    ON CONFLICT (tenant_id, day) DO UPDATE SET since = now()
    """
)
