"""The terms of a month: what is included in a tenant's plan and the least it pays, by the plan and
the price list in force on each day (UTC). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import NamedTuple

from tenora_platform.billing.price_lists import PriceList, Prices, Scope
from tenora_platform.invoices.currency import exact_sum, rounded
from tenora_platform.tenants.plan_history import PlanHistory

_CONTEXT = Context(prec=80, rounding=ROUND_HALF_EVEN)
_EXACT = Decimal("1e-12")
_DAY = timedelta(days=1)
_MOMENT = timedelta(microseconds=1)
_ZERO = Decimal(0)


@dataclass(frozen=True, slots=True)
class Terms:
    """In whole minor units of a currency: the least that a month costs, and how much of its usage
    is included."""

    minimum: Decimal = _ZERO
    included: Decimal = _ZERO


@dataclass(frozen=True, slots=True)
class Stay:
    """When a tenant was created and, if it has been, deleted."""

    since: datetime
    until: datetime | None = None

    def has(self, day: date) -> bool:
        """Whether the tenant was there on this day (UTC), the first and the last ones included."""
        first = self.since.astimezone(UTC).date()
        return first <= day and (self.until is None or day <= self.until.astimezone(UTC).date())


class Spell(NamedTuple):
    """Days of a month on which a tenant had one plan, from `first` until before `end`."""

    plan: str
    first: date
    end: date


@dataclass(frozen=True, slots=True)
class MonthTerms:
    """The terms of one month by currency, the plans by which they are, and of how many of its days
    the minimum is."""

    by_currency: dict[str, Terms]
    plans: tuple[Spell, ...]
    days_there: int
    days: int

    def of(self, currency: str) -> Terms:
        return self.by_currency.get(currency, Terms())


@dataclass(frozen=True)
class Customer:
    """What of a tenant bears on its terms."""

    id: str
    plans: PlanHistory
    stay: Stay

    def terms(self, prices: Prices, month: date) -> MonthTerms:
        """The terms of the month that begins on this day. A day has those of its last moment; the
        minimum is shared out over the days on which the tenant was there, what is included over all
        of them, and each is rounded once."""
        days = list(_days_of(month))
        held = [(day, *self._held_on(day, prices)) for day in days]
        there = [self.stay.has(day) for day in days]
        lists = [price for _, _, price in held]
        of_whom = [price for price, is_there in zip(lists, there, strict=True) if is_there]
        currencies = {price.currency for price in lists if price is not None}
        by_currency = {
            currency: Terms(
                minimum=_shared(((p.minimum, p) for p in of_whom if p), currency, len(days)),
                included=_shared(((p.included, p) for p in lists if p), currency, len(days)),
            )
            for currency in sorted(currencies)
        }
        plans = tuple(_spells((day, plan) for day, plan, _ in held))
        return MonthTerms(by_currency, plans, sum(there), len(days))

    def _held_on(self, day: date, prices: Prices) -> tuple[str, PriceList | None]:
        at = datetime.combine(day + _DAY, time(), UTC) - _MOMENT
        plan = self.plans.at(at)
        return plan, prices.choose(Scope(None, self.id, plan, None), at)


def _days_of(month: date) -> Iterable[date]:
    day = month
    while day.month == month.month:
        yield day
        day += _DAY


def _shared(amounts: Iterable[tuple[Decimal, PriceList]], currency: str, days: int) -> Decimal:
    """The amounts of single days, shared out over the month and rounded to the minor unit."""
    counted: dict[Decimal, int] = defaultdict(int)
    for amount, price in amounts:
        if price.currency == currency:
            counted[amount] += 1
    whole = exact_sum(_CONTEXT.multiply(amount, Decimal(n)) for amount, n in counted.items())
    shared = _CONTEXT.quantize(_CONTEXT.divide(whole, Decimal(days)), _EXACT)
    return rounded(shared, currency)


def _spells(days: Iterable[tuple[date, str]]) -> Iterable[Spell]:
    spell: Spell | None = None
    for day, plan in days:
        if spell is not None and spell.plan == plan:
            spell = spell._replace(end=day + _DAY)
            continue
        if spell is not None:
            yield spell
        spell = Spell(plan, day, day + _DAY)
    if spell is not None:
        yield spell
