"""Prices as plain Python says they are: which list an event is rated by, and what each of its
meters costs. Fractions only; nothing of the platform is imported. The tests drive it beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction

TOKENS = ("uncached_prefill", "cached_prefill", "output", "cold_load")
OCCUPANCY = ("device_residency", "host_residency", "stored")
METERS = (*TOKENS, *OCCUPANCY)
TICK = timedelta(microseconds=1)

Tiers = tuple[tuple[int, Fraction], ...]
"""(from so many units of a month on, price of a million), ascending, the first from 0."""


@dataclass(frozen=True)
class Event:
    """One sequence, or an hour of occupancy: what it used of each meter, and who, when, by what."""

    id: str
    at: datetime
    tenant: str
    quantities: Mapping[str, int]
    model: str = "base"
    plan: str | None = "standard"
    adapter: str | None = None
    key: str | None = None
    class_: str = "default"

    @property
    def month(self) -> str:
        return f"{self.at:%Y-%m}"

    @property
    def moved(self) -> dict[str, int]:
        return {meter: count for meter, count in self.quantities.items() if count}


@dataclass(frozen=True)
class PriceList:
    """Holds from `begins` until the next of its own scope begins. `prices`: by meter and class ("":
    any class that has none of its own)."""

    name: str
    begins: datetime
    prices: Mapping[tuple[str, str], Tiers]
    model: str | None = None
    plan: str | None = None
    tenant: str | None = None
    adapter: str | None = None
    currency: str = "USD"
    minimum: Fraction = Fraction(0)
    included: Fraction = Fraction(0)

    @property
    def scope(self) -> tuple[str | None, ...]:
        """The stronger first."""
        return (self.adapter, self.tenant, self.plan, self.model)

    @property
    def rank(self) -> tuple[object, ...]:
        return (*(part is not None for part in self.scope), self.begins)

    def fits(self, scope: Sequence[str | None]) -> bool:
        pairs = zip(self.scope, scope, strict=True)
        return all(own is None or own == other for own, other in pairs)

    def tiers(self, meter: str, class_: str) -> Tiers | None:
        return self.prices.get((meter, class_)) or self.prices.get((meter, ""))


@dataclass(frozen=True)
class Charge:
    """An event with its price: by meter (quantity, amount)."""

    event: Event
    prices: PriceList | None  # None: no meter moved, so no price was needed
    amounts: Mapping[str, Fraction]

    @property
    def amount(self) -> Fraction:
        return sum(self.amounts.values(), Fraction(0))


def cost(tiers: Tiers, before: int, quantity: int) -> Fraction:
    """Of the units from `before` on in a month, each at the price of its own place."""
    total = Fraction(0)
    ends = [begin for begin, _ in tiers[1:]] + [None]
    for (begin, price), end in zip(tiers, ends, strict=True):
        low = max(before, begin)
        high = before + quantity if end is None else min(before + quantity, end)
        total += max(high - low, 0) * price / 10**6
    return total


@dataclass
class PriceModel:
    """Every list there is, and how far each tenant is in each month's tiers of each."""

    lists: list[PriceList] = field(default_factory=list)
    volumes: dict[tuple[str, ...], int] = field(default_factory=lambda: defaultdict(int))

    def in_force(self, scope: Sequence[str | None], at: datetime) -> PriceList | None:
        """By scope (adapter, tenant, plan, model); the strongest, of equals the newest."""
        newest: dict[tuple[str | None, ...], PriceList] = {}
        for each in sorted(self.lists, key=lambda each: each.begins):
            if each.begins <= at and each.fits(scope):
                newest[each.scope] = each  # the one before it of this scope has ended
        return max(newest.values(), key=lambda each: each.rank, default=None)

    def rate(self, event: Event) -> Charge | None:
        """None: it waits for a price. All of its meters or none."""
        if not event.moved:
            return Charge(event, None, {})
        scope = (event.adapter, event.tenant, event.plan, event.model)
        chosen = self.in_force(scope, event.at)
        if chosen is None:
            return None
        found = {meter: chosen.tiers(meter, event.class_) for meter in event.moved}
        if not all(found.values()):
            return None
        amounts = {}
        for meter, quantity in event.moved.items():
            tiers = found[meter]
            assert tiers is not None
            place = (event.tenant, event.month, chosen.name, event.model, meter, event.class_)
            amounts[meter] = cost(tiers, self.volumes[place], quantity)
            if len(tiers) > 1:
                self.volumes[place] += quantity
        return Charge(event, chosen, amounts)

    def terms(self, tenant: str, plan: str | None, at: datetime) -> PriceList | None:
        """Whose minimum and included amount a day has that ends at `at`: the list in force then, of
        no model and no adapter."""
        return self.in_force((None, tenant, plan, None), at - TICK)

    def earliest(self, new: PriceList, charged: Sequence[Charge]) -> datetime | None:
        """None: it may begin when it wants to. Else it may not, and this is the first time at which
        it may: nothing that it would hold for has been rated by then, no other begins there."""
        same = sorted(each.begins for each in self.lists if each.scope == new.scope)
        end = min((begin for begin in same if begin > new.begins), default=None)
        rated = [each.event.at for each in charged if each.prices and _concerns(new, each.event)]
        if not any(new.begins <= at and (end is None or at < end) for at in rated):
            return None
        earliest = max(at for at in rated if at >= new.begins) + TICK
        while earliest in same:
            earliest += TICK
        return earliest


def _concerns(prices: PriceList, event: Event) -> bool:
    return prices.fits((event.adapter, event.tenant, event.plan, event.model))


def next_month(month: str) -> datetime:
    """When the month ends: the first moment of the next."""
    year, number = map(int, month.split("-"))
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)


def begin_of(month: str) -> datetime:
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
