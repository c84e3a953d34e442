"""Adds up usage by bucket and group: tokens, and what they cost where that is asked for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from tenora_platform.billing.rating import exact_sum
from tenora_platform.usage.reading import OTHERS, Keys, Summed
from tenora_platform.usage.schemas import CurrencyCost, UsageCosts, UsageResult

TopBy = Literal["tokens", "cost", "requests"]
Tallies = Mapping[datetime, Mapping[Keys, "Tally"]]


@dataclass(frozen=True)
class Shape:
    """What results have beside tokens. `top`: so many groups of a page, by `top_by`, and the others
    together."""

    costs: bool = False
    top: int | None = None
    top_by: TopBy = "tokens"


@dataclass
class Tally:
    """One result while it is being added up."""

    counts: Counter[str] = field(default_factory=Counter)
    amounts: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))

    def add(self, each: Summed) -> None:
        self.counts[each.meter] += each.quantity
        if each.currency is not None and each.amount:
            self.amounts[each.currency] = exact_sum((self.amounts[each.currency], each.amount))

    def merge(self, tally: Tally) -> None:
        self.counts.update(tally.counts)
        for currency, amount in tally.amounts.items():
            self.amounts[currency] = exact_sum((self.amounts[currency], amount))

    def weight(self, by: TopBy) -> Decimal:
        if by == "cost":  # of several currencies by their numbers: only what is shown depends on it
            return exact_sum(self.amounts.values())
        if by == "requests":
            return Decimal(self.counts["requests"])
        tokens = ("cached_prefill", "uncached_prefill", "output")
        return Decimal(sum(self.counts[meter] for meter in tokens))

    def is_shown(self, shape: Shape) -> bool:
        return bool(self.counts["sequences"] or (shape.costs and any(self.amounts.values())))

    def result(self, keys: Keys, shape: Shape, others: int | None) -> UsageResult:
        cached, uncached = self.counts["cached_prefill"], self.counts["uncached_prefill"]
        return UsageResult(
            **({} if others is not None else dict(keys)),
            requests=self.counts["requests"],
            sequences=self.counts["sequences"],
            prompt_tokens=cached + uncached,
            cached_tokens=cached,
            uncached_tokens=uncached,
            output_tokens=self.counts["output"],
            costs=self._costs() if shape.costs else None,
            others=others,
        )

    def _costs(self) -> UsageCosts:
        return UsageCosts(
            amounts=[
                CurrencyCost(currency=currency, amount=f"{amount:.12f}")
                for currency, amount in sorted(self.amounts.items())
            ],
            unrated_events=self.counts["unrated"],
        )


def tallied(sums: Iterable[Summed]) -> Tallies:
    found: dict[datetime, dict[Keys, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for each in sums:
        found[each.bucket][each.group].add(each)
    return found


def results(groups: Mapping[Keys, Tally], shape: Shape, others: int | None) -> list[UsageResult]:
    """In the order of their keys, the others last."""
    shown = {keys: tally for keys, tally in groups.items() if tally.is_shown(shape)}
    ordered = sorted(shown, key=lambda keys: (keys == OTHERS, in_order(keys)))
    return [shown[keys].result(keys, shape, others if keys == OTHERS else None) for keys in ordered]


def totals(
    tallies: Tallies, shape: Shape, others: int | None
) -> tuple[list[UsageResult], UsageResult]:
    """Each group's of all buckets, the greatest first and the others last, and all groups'."""
    groups: dict[Keys, Tally] = defaultdict(Tally)
    total = Tally()
    for bucket in tallies.values():
        for keys, tally in bucket.items():
            groups[keys].merge(tally)
            total.merge(tally)
    shown = [(keys, tally) for keys, tally in groups.items() if tally.is_shown(shape)]
    shown.sort(key=lambda it: (it[0] == OTHERS, -it[1].weight(shape.top_by), in_order(it[0])))
    of_groups = [
        tally.result(keys, shape, others if keys == OTHERS else None) for keys, tally in shown
    ]
    return of_groups, total.result((), shape, None)


def in_order(keys: Keys) -> list[tuple[bool, Any]]:
    """By value, and what has none last."""
    return [(value is None, value) for _, value in keys]
