"""Which days a run looks at: those since the last run that settled days, and older ones that moved
since they were found right. Marks say which moved; who clears them is not known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from tenora_platform.reconciliation.bounds import Bounds, Window
from tenora_platform.reconciliation.reading import Snapshot

OPEN_DAYS = 2
"""Today and the day before: usage still arrives for them."""

Day = tuple[str, date]
"""Tenant and UTC day."""

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Moved:
    """`marks` are the numbers of each day's; days after `settled_through` are looked at without
    one, all of them where that is None."""

    marks: Mapping[Day, list[int]]
    settled_through: date | None

    def parts(self, of: Bounds, numbers: Mapping[str, int]) -> list[Bounds]:
        """What has to be looked at within these, in parts of which none holds a day of another's.
        `numbers` are the tenants'."""
        if self.settled_through is None:
            return [of]
        first = self.settled_through + _DAY
        old = [
            (numbers.get(tenant_id, 0), tenant_id, day)  # 0 is nobody's
            for tenant_id, day in self.marks
            if day < first and of.has(tenant_id, day)
        ]
        parts = [Bounds(windows=windows_of(old))] if old else []
        if of.last is None or of.last >= first:
            parts.append(of.since(first))
        return parts

    def seen(self, of: Bounds, wrong: set[Day]) -> list[int]:
        """The marks of days within these that nothing is wrong with."""
        return [
            number
            for day, numbers in self.marks.items()
            if day not in wrong and of.has(*day)
            for number in numbers
        ]


def read_moved(snapshot: Snapshot) -> Moved:
    marks: dict[Day, list[int]] = {}
    for number, tenant_id, day in snapshot.all("SELECT no, tenant, day FROM moved_days"):
        marks.setdefault((tenant_id, day), []).append(number)
    settled = snapshot.one("SELECT max(settled_through) FROM reconciliations WHERE state = 'done'")
    return Moved(marks, settled)


def windows_of(days: Iterable[tuple[int, str, date]]) -> list[Window]:
    """The fewest windows that hold these days (tenant's number, its id, day) and no others."""
    found: list[Window] = []
    for number, tenant_id, day in sorted(days):
        last = found[-1] if found else None
        if last is not None and last.tenant_id == tenant_id and day - last.last == _DAY:
            found[-1] = Window(number, tenant_id, last.first, day)
        else:
            found.append(Window(number, tenant_id, day, day))
    return found
