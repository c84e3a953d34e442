"""What a month of storing an adapter costs, by the price list that holds for it now."""

from __future__ import annotations

from datetime import UTC, datetime

from tenora_platform.auth import TenantContext
from tenora_platform.billing import repository as prices
from tenora_platform.billing.price_lists import ANY_CLASS, Prices, Scope
from tenora_platform.billing.rating import graduated
from tenora_platform.probing.schemas import StorageCost
from tenora_platform.state import AppState

MONTH_HOURS = 30 * 24


async def storage_cost(
    state: AppState, tenant: TenantContext, num_bytes: int, adapter_id: str | None = None
) -> StorageCost | None:
    """None where no list has a price for it, or the base model is not known yet."""
    if not state.engine_life.started:
        return None
    now = datetime.now(UTC)
    async with state.db.admin_session() as session:
        lists = await prices.price_lists(session, now, now, tenants=[tenant.tenant_id])
    scope = Scope(adapter_id, tenant.tenant_id, tenant.plan.name, state.engine.model.id)
    chosen = Prices(lists).choose(scope, now)
    tiers = chosen.tiers_of("stored", ANY_CLASS) if chosen else None
    if chosen is None or tiers is None:
        return None
    kb_hours = num_bytes * MONTH_HOURS // 1000
    return StorageCost(
        bytes=num_bytes,
        kb_hours=kb_hours,
        amount=graduated(tiers, kb_hours),
        currency=chosen.currency,
        price_version=chosen.id,
    )
