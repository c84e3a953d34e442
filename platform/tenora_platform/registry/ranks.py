"""By what a tenant's adapters are sorted where that is a sum over its usage: remembered for
seconds, so that the pages of a long list do not each add it all up again. Only orders come from
here; what is shown is read anew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Literal

from tenora_platform.db import Database
from tenora_platform.registry import traffic
from tenora_platform.remembered import Remembered

KEPT_S = 10.0
_TENANTS_MAX = 64

By = Literal["requests", "cost"]
Values = Mapping[str, int | Decimal]
"""By adapter, those with nothing left out."""


class AdapterRanks:
    """One for each process; another may be `KEPT_S` apart, as two pages of a list may be."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._kept: Remembered[Values] = Remembered(KEPT_S, _TENANTS_MAX)

    async def values(self, tenant_id: str, by: By, now: datetime) -> Values:
        """`requests` of the last 24 hours; `cost` of this month, whatever the currency. Takes a
        session of its own: not to be asked within another."""
        return await self._kept.get((tenant_id, by), lambda: self._read(tenant_id, by, now))

    async def _read(self, tenant_id: str, by: By, now: datetime) -> Values:
        async with self._db.tenant_session(tenant_id) as session:
            if by == "requests":
                since = traffic.traffic_since(now)
                return await traffic.requests_by_adapter(session, tenant_id, since)
            return await traffic.cost_by_adapter(session, tenant_id, traffic.month_of(now))
