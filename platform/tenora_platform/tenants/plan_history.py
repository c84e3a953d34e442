"""Which plan a tenant had at a time: what happened then is priced by it, whatever it has now."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ARRAY, Text, any_, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.tenants.tables import TenantPlanRow


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """The plans of one tenant, each with the time from which it had it; at least one, the oldest
    first."""

    spans: tuple[tuple[datetime, str], ...]

    def at(self, time: datetime) -> str:
        """The plan at this time. Before there was a tenant, its first."""
        after = bisect_right(self.spans, time, key=lambda span: span[0])
        return self.spans[max(after - 1, 0)][1]


async def plan_histories(
    session: AsyncSession, tenant_ids: Collection[str]
) -> dict[str, PlanHistory]:
    """By tenant. One that is not there is left out."""
    row = TenantPlanRow
    query = (
        select(row.tenant_id, row.since, row.plan)
        .where(row.tenant_id == any_(literal(list(tenant_ids), ARRAY(Text))))
        .order_by(row.tenant_id, row.since)
    )
    found: dict[str, list[tuple[datetime, str]]] = {}
    for tenant_id, since, plan in await session.execute(query):
        found.setdefault(tenant_id, []).append((since, plan))
    return {tenant_id: PlanHistory(tuple(spans)) for tenant_id, spans in found.items()}
