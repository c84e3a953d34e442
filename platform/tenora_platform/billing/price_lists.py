"""Price lists: what each meter costs, for whom, from when on, and which of many lists holds. Pure.
Knows neither usage nor a database."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Literal, NamedTuple, get_args

Meter = Literal[
    "uncached_prefill",  # tokens
    "cached_prefill",  # tokens
    "output",  # tokens, accepted drafts included
    "cold_load",  # loads of an adapter that was in no memory
    "device_residency",  # an adapter in device memory, in kB seconds
    "host_residency",  # in host memory, in kB seconds
    "stored",  # an adapter's version in the object store, in kB hours
]
METERS: tuple[Meter, ...] = get_args(Meter)

HELD_METERS: tuple[Meter, ...] = METERS[4:]
"""Of what is held over a time, by no request and in no class."""

Status = Literal["announced", "in_force", "ended"]

ANY_CLASS = ""
"""The class of a price for each class without one of its own; that of what is held."""


class Scope(NamedTuple):
    """For whom a list holds: None is any. The same of usage: None is none."""

    adapter_id: str | None
    tenant_id: str | None
    plan: str | None
    model: str | None


class Tier(NamedTuple):
    """The price of a million units from the `from_quantity`-th of a month on (the first is 0)."""

    from_quantity: int
    per_million: Decimal


Tiers = tuple[Tier, ...]


@dataclass(frozen=True)
class PriceList:
    """From `effective_from` until before `effective_to`. `tiers` are by meter and class, in
    ascending order. `minimum` is of a month's invoice, `included` what is free in each month."""

    id: str
    no: int
    scope: Scope
    currency: str
    effective_from: datetime
    effective_to: datetime | None
    tiers: Mapping[tuple[Meter, str], Tiers]
    minimum: Decimal = Decimal(0)
    included: Decimal = Decimal(0)

    def tiers_of(self, meter: Meter, class_: str) -> Tiers | None:
        """Of the class, else of any class. None where nothing says what the first unit costs."""
        found = self.tiers.get((meter, class_)) or self.tiers.get((meter, ANY_CLASS))
        return found if found and found[0].from_quantity == 0 else None

    def status_at(self, at: datetime) -> Status:
        if at < self.effective_from:
            return "announced"
        return "in_force" if self.holds_at(at) else "ended"

    def holds_at(self, at: datetime) -> bool:
        return self.effective_from <= at and (self.effective_to is None or at < self.effective_to)


_ALL = list(itertools.product((True, False), repeat=len(Scope._fields)))
"""Which parts of a usage's scope a list may name, the most specific first."""


class Prices:
    """Price lists, quick to choose from: thousands of tenants may have some of their own."""

    def __init__(self, lists: Iterable[PriceList] = ()) -> None:
        self._by_scope: dict[Scope, list[PriceList]] = {}
        self._scopes_of: dict[str | None, list[Scope]] = {}
        for price in sorted(lists, key=lambda each: each.effective_from, reverse=True):
            if price.scope not in self._by_scope:
                self._by_scope[price.scope] = []
                self._scopes_of.setdefault(price.scope.tenant_id, []).append(price.scope)
            self._by_scope[price.scope].append(price)
        self._candidates: dict[Scope, tuple[PriceList, ...]] = {}

    @cached_property
    def tiered(self) -> bool:
        """Whether any of them has tiers at all."""
        lists = itertools.chain.from_iterable(self._by_scope.values())
        return any(len(tiers) > 1 for price in lists for tiers in price.tiers.values())

    def choose(self, scope: Scope, at: datetime) -> PriceList | None:
        """The most specific list that holds then for such usage: an adapter's own before its
        tenant's before the plan's before the model's before the general one; of equals the newest.
        """
        candidates = self._candidates.get(scope)
        if candidates is None:
            candidates = self._candidates[scope] = tuple(self._covering(scope))
        return next((price for price in candidates if price.holds_at(at)), None)

    def currencies_of(self, tenant_id: str, plan: str, at: datetime) -> list[str]:
        """All in which such a tenant may be charged: of the lists that hold for some of its usage,
        not of those that a more specific one hides from all of it. The first is the tenant's own
        currency: that of a list for the tenant before its plan's before one for everybody, each
        before those for one model, and of an adapter's last; of equals the newest."""
        found: list[PriceList] = []
        for scope in (*self._scopes_of.get(tenant_id, ()), *self._scopes_of.get(None, ())):
            if scope.plan in (None, plan):
                chosen = self.choose(Scope(scope.adapter_id, tenant_id, plan, scope.model), at)
                found += [price for price in self._by_scope[scope] if price is chosen]
        found.sort(key=lambda price: price.effective_from, reverse=True)
        found.sort(key=lambda price: _generality(price.scope))
        return list(dict.fromkeys(price.currency for price in found))

    def _covering(self, usage: Scope) -> Iterator[PriceList]:
        scopes = (
            Scope(*(part if kept else None for part, kept in zip(usage, mask, strict=True)))
            for mask in _ALL
        )
        for scope in dict.fromkeys(scopes):
            yield from self._by_scope.get(scope, ())


def _generality(scope: Scope) -> tuple[bool, ...]:
    """The least for the list that says most of what a tenant is charged in all."""
    return (
        scope.adapter_id is not None,
        scope.tenant_id is None,
        scope.tenant_id is None and scope.plan is None,
        scope.model is not None,
        scope.plan is None,
    )


def covers(lists: Scope, usage: Scope) -> bool:
    """Whether a list of the one scope holds for usage of the other."""
    return all(wanted in (None, has) for wanted, has in zip(lists, usage, strict=True))


def specificity(scope: Scope) -> tuple[bool, ...]:
    """Of two lists that hold, that of the greater one is taken."""
    return tuple(part is not None for part in scope)
