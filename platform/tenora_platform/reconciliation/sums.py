"""Sums of usage as events make them, and how they are compared with the tables of hours and days.
Cells are filled by the layer of events; this module knows no event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.tariff import picos, shown

COUNTED = ("requests", "sequences", "unrated", "charged_nanos")
PRICED = (
    "uncached_prefill",
    "cached_prefill",
    "output",
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
)
METERS = COUNTED + PRICED
AMOUNTS = len(METERS)
"""Where in a cell the amounts of PRICED begin."""

CELL = [0] * (AMOUNTS + len(PRICED))
_PLACE = {meter: at for at, meter in enumerate(METERS)}
_AMOUNT_PLACE = {meter: AMOUNTS + at for at, meter in enumerate(PRICED)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = _EPOCH.date()

Cells = dict[tuple[int, int, int], list[int]]
"""(series, unit, price version) -> quantities of METERS, then amounts of PRICED in picos. The unit
counts hours, or days, since 1970."""


def hour_of(unit: int) -> datetime:
    return _EPOCH + timedelta(hours=unit)


def day_of(unit: int) -> date:
    return _FIRST_DAY + timedelta(days=unit)


def unit_of_day(day: date) -> int:
    return (day - _FIRST_DAY).days


def days_of(hours: Cells) -> Cells:
    """The same by days."""
    days: Cells = {}
    for (series, hour, version), cell in hours.items():
        key = (series, hour // 24, version)
        found = days.get(key)
        days[key] = cell[:] if found is None else [a + b for a, b in zip(found, cell, strict=True)]
    return days


SumRow = tuple[Any, ...]
"""Tenant, microseconds since 1970, series, price version, then what a cell has, amounts as they are
stored."""
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def compare_sums(
    cells: Cells,
    rows: Iterable[SumRow],
    owners: Mapping[int, str],
    found: Differences,
    kind: Kind,
) -> int:
    """Each row of usage_hours, or usage_days, with what the events say, and what the events say
    that no row does. `owners` are the tenants of series. It uses `cells` up.
    Returns how many rows there are."""
    count = 0
    per_day = 24 if kind is Kind.HOUR_WRONG else 1
    unit_us = DAY_US // per_day
    for tenant_id, at_us, series, version, *stored in rows:
        count += 1
        unit, rest = divmod(at_us, unit_us)
        stored[AMOUNTS:] = [picos(amount) if amount else 0 for amount in stored[AMOUNTS:]]
        cell = cells.pop((series, unit, version), CELL)
        owner = owners.get(series)
        if stored == cell and owner == tenant_id and not rest:
            continue
        for meter, place in _PLACE.items():
            cost = _AMOUNT_PLACE.get(meter)
            expected = (cell[place], cell[cost] if cost else 0)
            there = (stored[place], stored[cost] if cost else 0)
            moved = any(expected) or any(there)
            if expected != there or (moved and (owner != tenant_id or rest)):
                subject = _subject(tenant_id, unit, series, meter, version, per_day)
                said = _said(owner, *expected), _said(tenant_id, *there)
                found.add(kind, tenant_id, day_of(unit // per_day), subject, *said)
    _tell_missing(cells, owners, found, kind, per_day)
    return count


def _tell_missing(
    cells: Cells, owners: Mapping[int, str], found: Differences, kind: Kind, per_day: int
) -> None:
    for (series, unit, version), cell in cells.items():
        if not any(cell):
            continue
        tenant_id = owners.get(series)
        for meter, place in _PLACE.items():
            amount = cell[_AMOUNT_PLACE[meter]] if meter in _AMOUNT_PLACE else 0
            if cell[place] or amount:
                subject = _subject(tenant_id, unit, series, meter, version, per_day)
                expected = _said(tenant_id, cell[place], amount)
                found.add(kind, tenant_id, day_of(unit // per_day), subject, expected)


def _subject(
    tenant_id: str | None, unit: int, series: int, meter: str, version: int, per_day: int
) -> str:
    when = day_of(unit) if per_day == 1 else f"{hour_of(unit):%Y-%m-%dT%H}"
    return f"{tenant_id or 'nobody'} {when} series {series} {meter} at price version {version}"


def _said(tenant_id: str | None, quantity: int, amount: int) -> str:
    return f"{quantity} for {shown(amount)} of {tenant_id or 'nobody'}"
