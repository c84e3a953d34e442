"""One tenant's terms, month by month, read once for many months."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.repository import price_lists
from tenora_platform.billing.terms import Customer, Stay
from tenora_platform.tenants.plan_history import plan_histories
from tenora_platform.tenants.tables import TenantRow


@dataclass(frozen=True)
class TenantTerms:
    """`customer` None: no list includes anything, so nothing has to be looked up."""

    customer: Customer | None
    prices: Prices
    _known: dict[date, dict[str, Decimal]] = field(default_factory=dict)

    def included(self, month: date) -> dict[str, Decimal]:
        """By currency, what the month that begins on this day includes; nothing without a value."""
        if self.customer is None:
            return {}
        if month not in self._known:
            terms = self.customer.terms(self.prices, month).by_currency
            self._known[month] = {of: each.included for of, each in terms.items() if each.included}
        return self._known[month]


async def tenant_terms(session: AsyncSession, tenant_id: str) -> TenantTerms:
    """In a session that sees the tenant: its own or the operator's."""
    lists = await price_lists(session, tenants=[tenant_id])
    if not any(each.included for each in lists):
        return TenantTerms(None, Prices())
    query = select(TenantRow.created_at, TenantRow.deleted_at).where(TenantRow.id == tenant_id)
    since, until = (await session.execute(query)).one()
    plans = await plan_histories(session, [tenant_id])
    return TenantTerms(Customer(tenant_id, plans[tenant_id], Stay(since, until)), Prices(lists))
