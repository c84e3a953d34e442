"""By what a tenant's adapters are sorted where that is a sum over its usage: remembered for
seconds, so that the pages of a long list do not each add it all up again. Only orders come from
here; what is shown is read anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Literal

from tenora_platform.db import Database
from tenora_platform.registry import traffic
from tenora_platform.single_flight import SingleFlight

KEPT_S = 10.0
_KEPT_MAX = 64
"""Tenants whose adapters are sorted at one time."""

By = Literal["requests", "cost"]
Values = Mapping[str, int | Decimal]
"""By adapter, those with nothing left out."""


class AdapterRanks:
    """One for each process; another may be `KEPT_S` apart, as two pages of a list may be."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._clock = clock
        self._flights: SingleFlight[Values] = SingleFlight()
        self._kept: dict[tuple[str, By], tuple[float, Values]] = {}

    async def values(self, tenant_id: str, by: By, now: datetime) -> Values:
        """`requests` of the last 24 hours; `cost` of this month, whatever the currency."""
        kept = self._kept.get((tenant_id, by))
        if kept is not None and self._clock() - kept[0] < KEPT_S:
            return kept[1]
        return await self._flights.run((tenant_id, by), lambda: self._read(tenant_id, by, now))

    async def _read(self, tenant_id: str, by: By, now: datetime) -> Values:
        began = self._clock()
        found: Values
        async with self._db.tenant_session(tenant_id) as session:
            if by == "requests":
                since = traffic.traffic_since(now)
                found = await traffic.requests_by_adapter(session, tenant_id, since)
            else:
                month = traffic.month_of(now)
                found = await traffic.cost_by_adapter(session, tenant_id, month)
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[tenant_id, by] = (began, found)
        return found
