"""Queries of plans, tenants and API keys. Which rows they may touch is the session's matter."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.locks import lock
from tenora_platform.tenants.tables import ApiKeyRow, PlanRow, TenantRow


async def list_plans(session: AsyncSession) -> list[PlanRow]:
    return list(await session.scalars(select(PlanRow).order_by(PlanRow.name)))


async def lock_plan(session: AsyncSession, name: str) -> None:
    """Until the transaction ends: one changes the plan, whether or not it exists."""
    await lock(session, f"plan:{name}")


async def get_plan(session: AsyncSession, name: str) -> PlanRow | None:
    return await session.get(PlanRow, name)


async def put_plan(session: AsyncSession, name: str, values: dict[str, object]) -> PlanRow:
    changes = {**values, "updated_at": func.now()}
    statement = (
        insert(PlanRow)
        .values(name=name, **values)
        .on_conflict_do_update(index_elements=[PlanRow.name], set_=changes)
        .returning(PlanRow)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(statement)).one()


async def list_tenants(session: AsyncSession, *, after: str | None, limit: int) -> list[TenantRow]:
    """Newest first; one more than `limit`."""
    query = select(TenantRow).order_by(TenantRow.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(TenantRow.id < after)
    return list(await session.scalars(query))


async def get_tenant(
    session: AsyncSession, tenant_id: str, *, lock: bool = False
) -> TenantRow | None:
    return await session.get(TenantRow, tenant_id, with_for_update=lock or None)


async def list_keys(
    session: AsyncSession, tenant_id: str, *, after: str | None, limit: int
) -> list[ApiKeyRow]:
    """Newest first, revoked ones included; one more than `limit`."""
    query = (
        select(ApiKeyRow)
        .where(ApiKeyRow.tenant_id == tenant_id)
        .order_by(ApiKeyRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(ApiKeyRow.id < after)
    return list(await session.scalars(query))


async def get_key(
    session: AsyncSession, tenant_id: str, key_id: str, *, lock: bool = False
) -> ApiKeyRow | None:
    query = select(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id, ApiKeyRow.id == key_id)
    found: ApiKeyRow | None = await session.scalar(query.with_for_update() if lock else query)
    return found
