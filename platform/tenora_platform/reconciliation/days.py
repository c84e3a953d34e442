"""Which days a run looks at: those that are not over, and those whose sums are not as they were
when the day was found right. Digests of sums stand for days; who keeps them is not known here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from hashlib import blake2b

from tenora_platform.reconciliation.reading import Snapshot, Window
from tenora_platform.secret import ServerSecret

OPEN_DAYS = 2
"""Today and the day before: usage still arrives for them."""

Day = tuple[int, date]
"""Tenant number and UTC day."""


@dataclass(frozen=True, slots=True)
class Digests:
    """Of each tenant's day as it stands, and as it stood when it was found right."""

    now: Mapping[Day, bytes]
    kept: Mapping[Day, bytes]

    def moved(self, first_open: date) -> set[Day]:
        """What has to be looked at."""
        every = self.now.keys() | self.kept.keys()
        return {
            day for day in every if day[1] >= first_open or self.now.get(day) != self.kept.get(day)
        }


def read_digests(snapshot: Snapshot, secret: ServerSecret) -> Digests:
    """Keyed, so that who can write to the database cannot make one up."""
    key = secret.key("reconciled-days")
    found: dict[Day, list[object]] = {}
    for table in ("usage_days", "usage_hours"):
        rows = snapshot.all(_DAYS if table == "usage_days" else _HOURS)
        for tenant_no, day, count, digest in rows:
            found.setdefault((tenant_no, day), []).extend((table, count, digest))
    now = {
        day: blake2b(repr((*day, *parts)).encode(), key=key, digest_size=16).digest()
        for day, parts in found.items()
    }
    kept = snapshot.all("SELECT of_tenant, day, digest FROM reconciled_days")
    return Digests(now, {(no, day): bytes(digest) for no, day, digest in kept})


def windows_of(days: Iterable[Day], tenants: Mapping[int, str]) -> list[Window]:
    """The fewest windows that hold these days and no others."""
    found: list[Window] = []
    for tenant_no, day in sorted(days):
        if tenant_no not in tenants:
            continue
        last = found[-1] if found else None
        if last is not None and last.tenant_no == tenant_no and day - last.last == _DAY:
            found[-1] = Window(tenant_no, last.tenant_id, last.first, day)
        else:
            found.append(Window(tenant_no, tenants[tenant_no], day, day))
    return found


_DAY = timedelta(days=1)
_DIGEST = "count(*), sum(hashtextextended(s::text, 0)::numeric)::text"
_DAYS = (
    f"SELECT t.no, s.day, {_DIGEST} FROM usage_days s JOIN tenants t ON t.id = s.tenant_id"
    " GROUP BY t.no, s.day"
)
_HOURS = (
    f"SELECT t.no, (s.hour AT TIME ZONE 'UTC')::date AS day, {_DIGEST}"
    " FROM usage_hours s JOIN tenants t ON t.id = s.tenant_id GROUP BY 1, 2"
)
