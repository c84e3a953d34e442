"""The days of usage beside what the ledger has of them, by tenant, currency and meter. Pure; what
the ledger's own chain and balances hold is `ledger.verify`'s affair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from tenora_platform.reconciliation.differences import Differences, Kind
from tenora_platform.reconciliation.tariff import shown
from tenora_platform.usage.engine_totals import COPIES

BEHIND = timedelta(hours=1)
"""A day that the poster has not come to for so long is behind; before that it waits. A day that
runs it comes to each quarter of an hour."""

STORED_WITHIN = timedelta(minutes=10)
"""After a day's end, by when its last events are expected to be stored."""

Place = tuple[str, date, str, str]
"""Tenant, UTC day, currency, meter."""


def compare_ledger(
    used: Mapping[Place, int],
    posted: Mapping[Place, int],
    due: Mapping[tuple[str, date], datetime],
    now: datetime,
    found: Differences,
) -> int:
    """Amounts in picos. A day that is due has moved since the ledger last had it, which is no
    difference unless it has been so for long. Returns how many wait."""
    for place in sorted(used.keys() | posted.keys()):
        tenant_id, day, currency, meter = place
        expected, there = used.get(place, 0), posted.get(place, 0)
        if expected != there and (tenant_id, day) not in due:
            subject = f"{tenant_id} {day} revenue:{meter} in {currency}"
            found.add(Kind.LEDGER_WRONG, tenant_id, day, subject, shown(expected), shown(there))
    for (tenant_id, day), since in sorted(due.items()):
        if now - since > BEHIND:
            found.add(
                Kind.LEDGER_BEHIND,
                tenant_id,
                day,
                f"{tenant_id} {day}",
                "posted within seconds",
                f"due since {since.isoformat(timespec='seconds')}",
            )
    return len(due)


Counted = tuple[int, int, int, int, int]
"""Sequences, prompt, cached and output tokens, cold loads: as the engine counts them."""

NOTHING: Counted = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Tally:
    """What one engine has counted of a tenant's day, when it was asked last. `whole_since`: of days
    before it something may be missing."""

    engine: str
    tenant_id: str
    day: date
    counted: Counted
    whole_since: date
    seen_at: datetime


def compare_engine(
    tallies: Iterable[Tally],
    stored: Mapping[tuple[str, date], Counted],
    now: datetime,
    found: Differences,
    since: date = date.min,
) -> int:
    """What engines counted beside events and dead letters, for the days that all engines have
    counted whole, none of them before `since`. Of an engine that has gone before a day was over,
    the last is not known, so there may be more events, and as many more as were stored from the
    API's copies. Of a day that is hardly over, some may be on their way. Returns how many sequences
    that are."""
    least: dict[tuple[str, date], Counted] = {}
    most: dict[tuple[str, date], Counted] = {}
    unfinished: set[tuple[str, date]] = set()
    waiting = 0
    for each in tallies:
        place = each.tenant_id, each.day
        most[place] = added(most.get(place, NOTHING), each.counted)
        if each.engine == COPIES:
            continue
        since = max(since, each.whole_since)
        least[place] = added(least.get(place, NOTHING), each.counted)
        if each.seen_at < end_of(each.day):
            unfinished.add(place)
    if since == date.min:  # no engine has counted
        return 0
    for place in sorted(most.keys() | stored.keys()):
        tenant_id, day = place
        low, there = least.get(place, NOTHING), stored.get(place, NOTHING)
        high = most.get(place, NOTHING)
        fewer, more = _any_above(low, there), _any_above(there, high)
        if day < since or not (fewer or (more and place not in unfinished)):
            continue
        if now < end_of(day) + STORED_WITHIN:
            waiting += max(0, low[0] - there[0])
            continue
        kind = Kind.ENGINE_COUNTED_MORE if fewer else Kind.ENGINE_COUNTED_LESS
        found.add(kind, tenant_id, day, f"{tenant_id} {day}", _said(low), _said(there))
    return waiting


def _any_above(one: Counted, other: Counted) -> bool:
    return any(a > b for a, b in zip(one, other, strict=True))


def end_of(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def added(one: Counted, other: Counted) -> Counted:
    a, b, c, d, e = (x + y for x, y in zip(one, other, strict=True))
    return a, b, c, d, e


def _said(counted: Counted) -> str:
    sequences, prompt, cached, output, loads = counted
    return (
        f"{sequences} sequences, {prompt} prompt ({cached} cached) and {output} output tokens, "
        f"{loads} cold loads"
    )
