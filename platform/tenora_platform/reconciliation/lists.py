"""The layer of prices: each list beside what the audit log says was made of it, and the lists of
one scope beside each other. Who reads the rows is not known here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import groupby
from typing import Any

from tenora_platform.reconciliation.differences import Differences, Kind

CREATED, WITHDRAWN = "price_version.create", "price_version.withdraw"

Price = tuple[str, str, int, Decimal]
"""Meter, class, from quantity, price of a million."""

_MADE_BY_MIGRATION = {
    "id": "price_default",
    "currency": "USD",
    "effective_from": "2020-01-01T00:00:00+00:00",
    "per_million": {"uncached_prefill": "0.10", "cached_prefill": "0.02", "output": "0.40"},
}
_FREE = {
    "id": "price_free",
    "currency": "USD",
    "effective_from": "2020-01-01T00:00:00+00:00",
    "per_million": {"uncached_prefill": "0", "cached_prefill": "0", "output": "0"},
}
"""In place of the former where nothing had been charged by it (migration 0040)."""
_SINCE = ("cold_load", "device_residency", "host_residency", "stored")
"""Lists of before these had prices got 0 for them."""


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of price_versions. `scope`: model, plan, tenant, adapter."""

    id: str
    scope: tuple[str | None, ...]
    currency: str
    minimum: Decimal
    included: Decimal
    begin: datetime
    end: datetime | None
    withdrawn: bool

    def facts(self, prices: Iterable[Price]) -> dict[str, Any]:
        """What never changes of it."""
        return {
            "scope": self.scope,
            "currency": self.currency,
            "minimum": self.minimum,
            "included": self.included,
            "effective_from": self.begin,
            "withdrawn": self.withdrawn,
            "prices": sorted(prices),
        }


def compare_lists(
    rows: Sequence[ListRow],
    prices: Mapping[str, Sequence[Price]],
    entries: Iterable[tuple[str, str, str]],
    found: Differences,
) -> None:
    """`prices` by the list's id; `entries` of the audit log: action, target, details."""
    there = {row.id: row for row in rows}
    first = _FREE if _FREE["id"] in there else _MADE_BY_MIGRATION
    made: dict[str, dict[str, Any]] = {str(first["id"]): facts_of(first)}
    for action, target, details in entries:
        if action == CREATED:
            made[target] = facts_of(json.loads(details)["after"])
        elif target in made:
            made[target]["withdrawn"] = True
    for list_id in sorted(there.keys() | made.keys() | prices.keys()):
        row = there.get(list_id)
        facts = {} if row is None else row.facts(prices.get(list_id, ()))
        wanted = made.get(list_id, {})
        if facts.get("prices") and wanted.get("prices"):
            _complete(wanted["prices"])
        for name in sorted(facts.keys() | wanted.keys()):
            if facts.get(name) != wanted.get(name):
                told = None if row is None else row.scope[2]
                expected, stands = _text(wanted.get(name)), _text(facts.get(name))
                found.add(Kind.PRICE_CHANGED, told, None, f"{name} of {list_id}", expected, stands)
    _compare_times([row for row in rows if not row.withdrawn], found)


def facts_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same of an entry of the audit log, of this version's or of one before it."""
    return {
        "scope": (told.get("model"), told.get("plan"), told.get("tenant"), told.get("adapter")),
        "currency": told["currency"],
        "minimum": Decimal(told.get("minimum") or 0),
        "included": Decimal(told.get("included") or 0),
        "effective_from": datetime.fromisoformat(told["effective_from"]),
        "withdrawn": False,
        "prices": sorted(
            (meter, entry.get("class") or "", entry.get("from") or 0, Decimal(entry["price"]))
            for meter, given in told["per_million"].items()
            for entry in (given if isinstance(given, list) else [{"price": given}])
        ),
    }


def _complete(prices: list[Price]) -> None:
    known = {meter for meter, *_ in prices}
    prices += [(meter, "", 0, Decimal(0)) for meter in _SINCE if meter not in known]
    prices.sort()


def _compare_times(rows: list[ListRow], found: Differences) -> None:
    """Of one scope each list holds until the next one, the last for ever."""

    def scope(row: ListRow) -> tuple[str, ...]:
        return tuple(part or "" for part in row.scope)

    for _, group in groupby(sorted(rows, key=lambda row: (scope(row), row.begin)), key=scope):
        same = list(group)
        for row, after in zip(same, [*same[1:], None], strict=True):
            end = None if after is None else after.begin
            if row.end != end:
                subject = f"effective_to of {row.id}"
                found.add(
                    Kind.PRICE_CHANGED, row.scope[2], None, subject, _text(end), _text(row.end)
                )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{m} {c or 'any'} from {at}: {price:f}" for m, c, at, price in value)
    if isinstance(value, datetime):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
