"""What usage costs by the price list that holds for it: one line per meter, split over the list's
tiers. Pure and exact; Decimal only. Knows no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import NamedTuple

from tenora_platform.billing.price_lists import METERS, Meter, PriceList, Prices, Scope, Tiers

SEQUENCE_METERS: tuple[Meter, ...] = METERS[:4]
"""What a finished sequence can move; the order of its `positions`."""

_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation, Overflow])
"""The default context rounds at 28 digits; this one raises before it would round."""

_WIDE = Context(prec=80)
_AMOUNT_END = Decimal(10) ** 26
"""The first amount that NUMERIC(38, 12) does not hold."""

_LARGE = 10**15
"""Fewer units cost less than that at any price that NUMERIC(20, 6) holds."""


@dataclass(frozen=True, kw_only=True)
class Billable:
    """What of a usage event bears on its price. A finished sequence has tokens and cold loads; an
    occupancy has one quantity of its meter (kB seconds, kB hours) and nothing else."""

    event_id: str
    tenant_id: str
    adapter_id: str | None
    model: str
    plan: str | None
    class_: str  # that really served; "" of occupancy
    event_time: datetime
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cold_loads: int
    occupancy: tuple[Meter, int] | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.adapter_id, self.tenant_id, self.plan, self.model)

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Those that it can move, in the order of `Rating.positions`."""
        return SEQUENCE_METERS if self.occupancy is None else (self.occupancy[0],)

    def quantities(self) -> dict[Meter, int]:
        if self.occupancy is not None:
            return dict([self.occupancy])
        return {
            "uncached_prefill": self.prompt_tokens - self.cached_tokens,
            "cached_prefill": self.cached_tokens,
            "output": self.output_tokens,
            "cold_load": self.cold_loads,
        }


class Part(NamedTuple):
    """So many units at one price of a million."""

    quantity: int
    per_million: Decimal


@dataclass(frozen=True)
class RatedLine:
    """What one meter of an event costs. `amount` is exact: the sum of quantity * per_million / 10^6
    over the parts has at most twelve decimals."""

    meter: Meter
    quantity: int
    parts: tuple[Part, ...]  # one, unless the quantity lies in several tiers
    amount: Decimal


@dataclass(frozen=True)
class Rating:
    """What an event costs. `price` is None where nothing of it moved; `positions` says for each of
    the event's meters how much of the month came before it, None where that bears on no price."""

    event: Billable
    price: PriceList | None
    lines: tuple[RatedLine, ...]
    positions: tuple[int, ...] | None

    @property
    def amount(self) -> Decimal:
        return exact_sum(line.amount for line in self.lines)

    @property
    def price_version_no(self) -> int:
        """0 where there was nothing to price."""
        return 0 if self.price is None else self.price.no

    @property
    def nanos(self) -> int:
        return nanos_charged(self.amount)


class Volume(NamedTuple):
    """What is counted for a list's tiers: a tenant's usage of one meter, model and class in a month
    (UTC, by its first day), under one price version. So what a month costs does not hang on the
    order in which its events come."""

    tenant_id: str
    month: date
    price_version_no: int
    model: str
    class_: str
    meter: Meter


class UnratableError(Exception):
    """The event cannot be rated as things are; the message says why. It waits, and is not lost."""


class MissingPriceError(UnratableError):
    """No price covers the event; it stays unrated until one does."""


@dataclass(frozen=True)
class Priced:
    """An event with the quantity and the tiers of each of its meters that moved."""

    event: Billable
    price: PriceList | None
    used: Mapping[Meter, tuple[int, Tiers]]

    def volumes(self) -> dict[Volume, int]:
        """What it adds to volumes that bear on its price: nothing where no tiers do."""
        tiered = {meter: count for meter, (count, tiers) in self.used.items() if len(tiers) > 1}
        if self.price is None or not tiered:
            return {}
        event, number = self.event, self.price.no
        month = event.event_time.astimezone(UTC).date().replace(day=1)
        return {
            Volume(event.tenant_id, month, number, event.model, event.class_, meter): count
            for meter, count in tiered.items()
        }

    def rating(self, positions: Mapping[Meter, int]) -> Rating:
        """`positions` are of the meters that have volumes."""
        lines, tiered = [], False
        for meter, (quantity, tiers) in self.used.items():
            if len(tiers) > 1:
                tiered = True
                parts = split(tiers, positions[meter], quantity)
            else:
                parts = (Part(quantity, tiers[0].per_million),)
            lines.append(RatedLine(meter, quantity, parts, _amount(parts)))
        places = tuple(positions.get(meter, 0) for meter in self.event.meters) if tiered else None
        return Rating(self.event, self.price, tuple(lines), places)

    def rating_at_most(self, already: Mapping[Volume, int]) -> Rating:
        """An upper bound while the position is not known yet, only that it is not before `already`:
        all of a meter at the dearest of the tiers that are left."""
        begins = {volume.meter: already.get(volume, 0) for volume in self.volumes()}
        lines = []
        for meter, (quantity, tiers) in self.used.items():
            parts = (Part(quantity, dearest(tiers, begins.get(meter, 0))),)
            lines.append(RatedLine(meter, quantity, parts, _amount(parts)))
        return Rating(self.event, self.price, tuple(lines), None)


def exact_amount(quantity: int, per_million: Decimal) -> Decimal:
    """quantity * per_million / 10^6, unrounded."""
    return _EXACT.scaleb(_EXACT.multiply(Decimal(quantity), per_million), -6)


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _EXACT.add(total, amount)
    return total


def nanos_charged(amount: Decimal) -> int:
    """An event's whole amount in 10^-9 of the currency's unit, rounded up once: what budgets count
    is never below what is billed, and above it by less than one nano an event."""
    return int(_WIDE.scaleb(amount, 9).to_integral_value(ROUND_CEILING, _WIDE))


def _amount(parts: Sequence[Part]) -> Decimal:
    if len(parts) == 1:
        return exact_amount(*parts[0])
    return exact_sum(exact_amount(*part) for part in parts)


def split(tiers: Tiers, position: int, quantity: int) -> tuple[Part, ...]:
    """The units from `position` until before `position + quantity`, by the tiers they lie in."""
    parts = []
    end = position + quantity
    for number, tier in enumerate(tiers):
        last = number + 1 == len(tiers)
        until = end if last else min(end, tiers[number + 1].from_quantity)
        count = until - max(position, tier.from_quantity)
        if count > 0:
            parts.append(Part(count, tier.per_million))
    return tuple(parts)


def graduated(tiers: Tiers, quantity: int) -> Decimal:
    """What so much costs in a month: each unit at the price of its own tier."""
    return _amount(split(tiers, 0, quantity))


def dearest(tiers: Tiers, position: int) -> Decimal:
    """The highest price of a million of the units from `position` on."""
    later = [tier.per_million for tier in tiers if tier.from_quantity > position]
    here = [tier.per_million for tier in tiers if tier.from_quantity <= position]
    return max([*later, here[-1]])


def choose(prices: Prices, event: Billable) -> PriceList:
    """The most specific list in force for the event. Raises MissingPriceError."""
    found = prices.choose(event.scope, event.event_time)
    if found is None:
        raise MissingPriceError(
            f"no price for model {event.model!r} on plan {event.plan!r} at "
            f"{event.event_time.isoformat()}"
        )
    return found


def priced(prices: Prices, event: Billable) -> Priced:
    """By the list in force. Raises MissingPriceError if there is none, or if it lacks the price of
    one meter that moved, UnratableError for an amount that no book holds: all of it or nothing."""
    if not any(event.quantities().values()):
        return Priced(event, None, {})
    return priced_by(choose(prices, event), event)


def priced_by(price: PriceList, event: Billable) -> Priced:
    """By this list, whether or not it is the one in force: to rate again what was rated. Raises as
    `priced` does."""
    used, total = {}, 0
    for meter, quantity in event.quantities().items():
        if not quantity:
            continue
        tiers = price.tiers_of(meter, event.class_)
        if tiers is None:
            raise MissingPriceError(
                f"price list {price.id} has no price for {meter} of class {event.class_!r}"
            )
        used[meter] = (quantity, tiers)
        total += quantity
    made = Priced(event, price if used else None, used)
    if total >= _LARGE and (most := made.rating_at_most({}).amount) >= _AMOUNT_END:
        raise UnratableError(
            f"it would cost up to {most:.0f}, which is larger than the books can store"
        )
    return made


def rate_again(price: PriceList, event: Billable, positions: Sequence[int] | None) -> Rating:
    """What was rated by this list at these positions (None where no tiers bore on it), anew. Raises
    UnratableError where that cannot be."""
    of = dict(zip(event.meters, positions or (), strict=False))
    found = priced_by(price, event)
    missing = [volume.meter for volume in found.volumes() if volume.meter not in of]
    if missing:
        raise UnratableError(
            f"price list {price.id} has tiers for {missing[0]}, but the position in them is missing"
        )
    return found.rating(of)


def place(batch: Sequence[Priced], starts: Mapping[Volume, int]) -> list[Rating]:
    """Rate events one after the other, from where each volume stood before them. The positions of
    one volume have neither gaps nor overlaps."""
    at = dict(starts)
    ratings = []
    for each in batch:
        positions: dict[Meter, int] = {}
        for volume, quantity in each.volumes().items():
            positions[volume.meter] = at[volume]
            at[volume] += quantity
        ratings.append(each.rating(positions))
    return ratings


def volumes_of(batch: Iterable[Priced]) -> dict[Volume, int]:
    """What all of them add to volumes."""
    total: dict[Volume, int] = {}
    for each in batch:
        for volume, quantity in each.volumes().items():
            total[volume] = total.get(volume, 0) + quantity
    return total
