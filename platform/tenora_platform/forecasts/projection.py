"""What a month comes to, if its days go on as the last ones went. Pure: it knows days and amounts,
no database and no budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal

from tenora_platform.billing.rating import exact_sum
from tenora_platform.usage.reading import floor

DAYS = 7
"""Full days that are looked back on: a whole week, for weekends are other than its other days."""
SPREAD_DAYS_MIN = 3
"""Fewer say nothing of how much days differ."""
_Z = Decimal("1.2816")  # eight months of ten end between low and high, if days are independent
_DAY = timedelta(days=1)
_EXACT = Decimal("0.000000000001")
_CONTEXT = Context(prec=60)
_FREE = Decimal(0)
METHOD = (
    f"`spent` so far, plus the mean of the last full days (UTC, at most {DAYS}) for each "
    "remaining day of the month. Eight of ten months should end between `low` and `high`, which "
    "follow from how much those days differ; `low` is never less than what is already spent. "
    "Amounts use the prices at which usage was rated, without tax, minimum or included usage."
)


@dataclass(frozen=True, slots=True)
class Projection:
    """`end` None: there was no full day to go by. `low` and `high` None: too few."""

    mean_day: Decimal | None
    end: Decimal | None
    low: Decimal | None
    high: Decimal | None


def month_of(now: datetime) -> tuple[datetime, datetime]:
    """Its first moment, and the next one's."""
    start = floor(now, "month")
    return start, floor(start + timedelta(days=32), "month")


def full_days(now: datetime, first_use: date | None) -> list[date]:
    """The last full days before `now` since there was any use, oldest first."""
    if first_use is None:
        return []
    today = now.astimezone(UTC).date()
    return [day for n in range(DAYS, 0, -1) if (day := today - n * _DAY) >= first_use]


def projected(
    now: datetime, spent: Decimal, by_day: Mapping[date, Decimal], days: Sequence[date]
) -> Projection:
    """Of a month in which `spent` was spent until `now`, by what `days` cost."""
    if not days:
        return Projection(None, None, None, None)
    amounts = [by_day.get(day, _FREE) for day in days]
    count = Decimal(len(amounts))
    mean = _CONTEXT.divide(exact_sum(amounts), count)
    left = days_left(now)
    rest = _CONTEXT.multiply(mean, left)
    end = _rounded(_CONTEXT.add(spent, rest))
    if len(amounts) < SPREAD_DAYS_MIN:
        return Projection(_rounded(mean), end, None, None)
    # Of the days to come, and of a mean that is of a few days itself.
    differ = exact_sum(_CONTEXT.power(each - mean, 2) for each in amounts)
    variance = _CONTEXT.divide(differ, count - 1)
    widths = _CONTEXT.add(left, _CONTEXT.divide(_CONTEXT.power(left, 2), count))
    spread = _CONTEXT.multiply(_Z, _CONTEXT.sqrt(_CONTEXT.multiply(variance, widths)))
    low = max(spent, _CONTEXT.subtract(_CONTEXT.add(spent, rest), spread))
    high = _CONTEXT.add(_CONTEXT.add(spent, rest), spread)
    return Projection(_rounded(mean), end, _rounded(low), _rounded(high))


def estimate(amount: Decimal) -> Decimal:
    """As a forecast is told: to the cent or its first four digits, whichever is finer. Rounded up,
    so that it is never below what is spent."""
    places = max(2, 3 - amount.adjusted()) if amount else 2
    return amount.quantize(Decimal(1).scaleb(-places), ROUND_CEILING, context=_CONTEXT)


def days_left(now: datetime) -> Decimal:
    """Of its month, parts of days too."""
    _, end = month_of(now)
    return Decimal(int((end - now).total_seconds())) / Decimal(86_400)


def reached_on(now: datetime, spent: Decimal, mean_day: Decimal, cap: Decimal) -> date | None:
    """The day on which so many mean days have used up `cap`; None: not in this month."""
    if spent >= cap:
        return now.astimezone(UTC).date()
    if not mean_day:
        return None
    days = _CONTEXT.divide(cap - spent, mean_day)
    if days >= days_left(now):
        return None
    return (now.astimezone(UTC) + timedelta(days=float(days))).date()


def _rounded(amount: Decimal) -> Decimal:
    return amount.quantize(_EXACT, context=_CONTEXT)
