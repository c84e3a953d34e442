"""Who pays for what the platform asks of its own accord: a tenant of the platform's, made on first
use. What it is asked is metered and priced like anybody's, so that the books need no exception."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_engine.request import WEIGHT_MIN, Tenant
from tenora_platform.auth import tenant_namespace
from tenora_platform.locks import lock
from tenora_platform.state import AppState
from tenora_platform.tenants import repository as tenants
from tenora_platform.tenants.schemas import PlanBody, TenantCreate
from tenora_platform.tenants.service import TenantService
from tenora_platform.tenants.tables import TenantRow

PLAN = "tenora-probes"
"""A price list of this plan says what probes cost; the tenant has it alone."""

_ACTOR = "probes"


async def probing_tenant(state: AppState) -> Tenant:
    """As the engine knows it: in the lowest class, with the least weight there is."""
    async with state.db.admin_session() as session:
        tenant_id = await _tenant_id(state, session)
    return Tenant(
        key=tenant_id,
        namespace=tenant_namespace(state.secret, tenant_id, None),
        weight=WEIGHT_MIN,
        tier="flex",
    )


async def _tenant_id(state: AppState, session: AsyncSession) -> str:
    await lock(session, "probing tenant")
    found: str | None = await session.scalar(
        select(TenantRow.id).where(TenantRow.plan == PLAN).order_by(TenantRow.id).limit(1)
    )
    if found is not None:
        return found
    service = TenantService(session, audit=state.audit, actor=_ACTOR)
    if await tenants.get_plan(session, PLAN) is None:
        await service.put_plan(PLAN, PlanBody(sla_class="flex", weight=WEIGHT_MIN))
    row = await service.create_tenant(TenantCreate(name="Tenora probes", plan=PLAN), internal=True)
    return row.id
