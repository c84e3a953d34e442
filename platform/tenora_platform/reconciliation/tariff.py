"""Price lists as whole numbers: what a quantity of a meter costs in picos, 10^-12 of the currency's
unit, in which every amount is exact. Written apart from `billing.rating`, which it proves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal

PICO = 10**12
NANO = 1000  # picos
EVENT_METERS = ("uncached_prefill", "cached_prefill", "output", "cold_load")
"""In the order in which an event keeps its places in volume tiers."""

_WIDE = Context(prec=80)
"""The default one rounds at 28 digits."""

Tiers = tuple[tuple[int, int], ...]
"""(from so many units in the month on, picos a unit), ascending, the first from 0."""


class MissingPriceError(LookupError):
    """The list has no price for a meter that moved."""


def picos(amount: Decimal) -> int:
    """Exact: amounts have twelve decimals at most. Raises ValueError for one that has more."""
    whole = _WIDE.scaleb(amount, 12)
    if whole != whole.to_integral_value():
        raise ValueError(f"{amount} has more than twelve decimals")
    return int(whole)


def is_amount(amount: Decimal | None, charged: int) -> bool:
    """Whether it is so many picos."""
    return amount is not None and _WIDE.scaleb(amount, 12) == charged


def shown(amount: int) -> str:
    """An amount in picos as plain digits with all twelve decimals."""
    sign, digits = "-" if amount < 0 else "", f"{abs(amount):013d}"
    return f"{sign}{digits[:-12]}.{digits[-12:]}"


def nanos(amount: int) -> int:
    """Picos as nanos, rounded up: what budgets count of an event."""
    return -(-amount // NANO)


@dataclass(slots=True)
class Tariff:
    """One price version: its tiers by (meter, class), class "" of any."""

    no: int
    id: str
    currency: str
    tiers: dict[tuple[str, str], Tiers] = field(default_factory=dict)

    def of(self, meter: str, service_class: str) -> Tiers | None:
        found = self.tiers.get((meter, service_class))
        return self.tiers.get((meter, "")) if found is None else found

    def flat(self, service_class: str) -> tuple[int | None, ...] | None:
        """Picos a unit of EVENT_METERS (None: no price); None if one of them has tiers."""
        every = [self.of(meter, service_class) for meter in EVENT_METERS]
        if any(tiers is not None and len(tiers) > 1 for tiers in every):
            return None
        return tuple(None if tiers is None else tiers[0][1] for tiers in every)


def tariffs(
    versions: Iterable[tuple[int, str, str]],
    prices: Iterable[tuple[int, str, str, int, Decimal]],
) -> Mapping[int, Tariff]:
    """By number, of (no, id, currency) and (no, meter, class, from quantity, price a million)."""
    made = {no: Tariff(no, version_id, currency) for no, version_id, currency in versions}
    for no, meter, service_class, begin, per_million in sorted(prices):
        # A price has six decimals: picos a unit = per_million * 10^12 / 10^6.
        step = (begin, picos(_WIDE.scaleb(per_million, -6)))
        tiers = made[no].tiers
        tiers[meter, service_class] = (*tiers.get((meter, service_class), ()), step)
    return made


def cost(tiers: Tiers, quantity: int, position: int) -> int:
    """Picos of `quantity` units after `position` of the month."""
    total, end = 0, position + quantity
    for at, (begin, price) in enumerate(tiers):
        until = tiers[at + 1][0] if at + 1 < len(tiers) else end
        total += max(0, min(end, until) - max(position, begin)) * price
    return total
