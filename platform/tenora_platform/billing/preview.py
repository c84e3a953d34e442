"""What a month would have cost by a price list that is not there yet, from the month's sums. Exact
in tiers as well: what they cost does not hang on the order of events. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from tenora_platform.billing.price_lists import (
    Meter,
    PriceList,
    Prices,
    Scope,
    covers,
    specificity,
)
from tenora_platform.billing.rating import exact_sum, graduated
from tenora_platform.billing.terms import Customer, MonthTerms

Money = dict[str, Decimal]
"""By currency."""


@dataclass(frozen=True)
class MonthUsed:
    """A month's sum of one kind of usage under one price (`rated_by` None: it waits for one)."""

    scope: Scope
    class_: str
    meter: Meter
    quantity: int
    amount: Decimal
    rated_by: PriceList | None


class MeterKey(NamedTuple):
    meter: Meter
    class_: str


@dataclass
class MeterChange:
    """What one meter of one class cost a tenant, and what it would."""

    quantity: int = 0
    before: Money = field(default_factory=dict)
    after: Money = field(default_factory=dict)
    unpriced: int = 0  # of the quantity: no price, before or in the new list


TenantChange = dict[MeterKey, MeterChange]


@dataclass(frozen=True)
class Due:
    """What a tenant's month comes to with what its list includes and asks for at least: before
    credit, tax and the rounding of an invoice's lines."""

    before: Money
    after: Money


def preview(new: PriceList, used: Iterable[MonthUsed]) -> dict[str, TenantChange]:
    """By tenant, as if `new` had been there from the month's beginning until its end: it takes over
    what it holds for, unless a more specific list has rated it."""
    tenants: dict[str, TenantChange] = defaultdict(lambda: defaultdict(MeterChange))
    taken: dict[tuple[str, str, MeterKey], int] = defaultdict(int)
    for each in used:
        tenant, key = each.scope.tenant_id or "", MeterKey(each.meter, each.class_)
        change = tenants[tenant][key]
        change.quantity += each.quantity
        if each.rated_by is not None:
            _add(change.before, each.rated_by.currency, each.amount)
        if _takes_over(new, each):
            taken[tenant, each.scope.model or "", key] += each.quantity
        elif each.rated_by is not None:
            _add(change.after, each.rated_by.currency, each.amount)
        else:
            change.unpriced += each.quantity
    for (tenant, _, key), quantity in taken.items():
        tiers = new.tiers_of(*key)
        if tiers is None:
            tenants[tenant][key].unpriced += quantity
        else:
            _add(tenants[tenant][key].after, new.currency, graduated(tiers, quantity))
    return {tenant: dict(tenants[tenant]) for tenant in sorted(tenants)}


def dues(
    new: PriceList,
    month: date,
    lists: Sequence[PriceList],
    customers: Iterable[Customer],
    changes: Mapping[str, TenantChange],
) -> dict[str, Due]:
    """Of the month that begins on this day, by tenant, those with nothing to pay left out. A tenant
    that has used nothing may owe a minimum all the same. `new` holds for all of the month."""
    others = [each for each in lists if each.scope != new.scope]
    old, replaced = Prices(lists), Prices([*others, new])
    found = {}
    for customer in customers:
        meters = changes.get(customer.id, {}).values()
        due = Due(
            _due(total([each.before for each in meters]), customer.terms(old, month)),
            _due(total([each.after for each in meters]), customer.terms(replaced, month)),
        )
        if due.before or due.after:
            found[customer.id] = due
    return found


def _due(used: Money, terms: MonthTerms) -> Money:
    due = dict(used)
    for currency, of in terms.by_currency.items():
        left = exact_sum((used.get(currency, Decimal(0)), of.included.copy_negate()))
        due[currency] = max(left, Decimal(0), of.minimum)
    return {currency: amount for currency, amount in due.items() if amount}


def _takes_over(new: PriceList, used: MonthUsed) -> bool:
    if not covers(new.scope, used.scope):
        return False
    by = used.rated_by
    return by is None or specificity(new.scope) >= specificity(by.scope)


def _add(total: Money, currency: str, amount: Decimal) -> None:
    total[currency] = exact_sum((total.get(currency, Decimal(0)), amount))


def total(changes: Sequence[Mapping[str, Decimal]]) -> Money:
    found: Money = {}
    for each in changes:
        for currency, amount in each.items():
            _add(found, currency, amount)
    return found
