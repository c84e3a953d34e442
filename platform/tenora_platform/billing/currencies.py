"""In which currencies a tenant is charged, by the price lists in force. What it has spent in them
is budgets', usage's and the ledger's to say."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.repository import price_lists

WITHOUT_PRICES = "USD"
"""The currency of what is set or granted before there is any price list."""


async def charged_in(session: AsyncSession, tenant_id: str, plan: str, now: datetime) -> list[str]:
    """The tenant's own currency first; none while no price list is in force for it."""
    prices = Prices(await price_lists(session, now, now, tenants=[tenant_id]))
    return prices.currencies_of(tenant_id, plan, now)
