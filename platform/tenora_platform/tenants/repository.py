"""Queries of plans, tenants and API keys. Which rows they may touch is the session's matter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Text, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.errors import ConflictError
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


@dataclass(frozen=True, slots=True)
class OnPlan:
    """How many tenants a plan has."""

    all: int
    suspended: int


async def page_of_plans(
    session: AsyncSession, *, asked: str | None, sort: str, after: str | None, limit: int
) -> list[tuple[PlanRow, OnPlan]]:
    """By name or by how many tenants it has (`tenants`), from behind the plan of that name; one
    more than `limit`."""
    by, descending = paging.split(sort)
    tenants = (
        select(
            TenantRow.plan,
            func.count().label("all"),
            func.count().filter(TenantRow.status == "suspended").label("suspended"),
        )
        .group_by(TenantRow.plan)
        .subquery()
    )
    every, suspended = (func.coalesce(tenants.c[each], 0) for each in ("all", "suspended"))
    query = (
        select(PlanRow, every, suspended)
        .outerjoin(tenants, tenants.c.plan == PlanRow.name)
        .where(*paging.having(asked, PlanRow.name))
    )
    key: ColumnElement[Any] = every if by == "tenants" else PlanRow.name.expression
    of_after: ScalarSelect[Any] = select(literal(after, Text)).scalar_subquery()
    if by == "tenants":
        counted = select(func.count()).select_from(TenantRow).where(TenantRow.plan == after)
        of_after = counted.scalar_subquery()
    order = paging.Order(key, PlanRow.name.expression, descending, of_after)
    rows = await session.execute(paging.page(query, order, after=after, limit=limit))
    return [(plan, OnPlan(count, of_them)) for plan, count, of_them in rows]


async def lock_tenant_name(session: AsyncSession, name: str) -> None:
    """Until the transaction ends: two that make tenants of one name know of each other."""
    await lock(session, f"tenant_name:{name.lower()}")


async def get_tenant(
    session: AsyncSession, tenant_id: str, *, lock: bool = False
) -> TenantRow | None:
    return await session.get(
        TenantRow, tenant_id, with_for_update={"key_share": True} if lock else None
    )


async def require_not_erased(session: AsyncSession, tenant_id: str) -> None:
    """Raises ConflictError: nothing is made for a tenant that was erased. It is locked against
    that."""
    row = await session.get(TenantRow, tenant_id, with_for_update={"key_share": True})
    if row is not None and row.erase_after is not None and row.erase_after <= datetime.now(UTC):
        raise ConflictError("This tenant has been deleted.", code="tenant_erased")


async def require_not_deleted(session: AsyncSession, tenant_id: str) -> None:
    """As `require_not_erased`, and not for one that can still be restored either."""
    await require_not_erased(session, tenant_id)
    row = await session.get(TenantRow, tenant_id)
    if row is not None and row.deleted_at is not None:
        raise ConflictError(
            "This tenant has been deleted; restore it first.", code="tenant_deleted"
        )


async def erased_among(session: AsyncSession, tenant_ids: Iterable[str]) -> set[str]:
    """Those that have been erased. None of the others is, before the transaction ends."""
    row = TenantRow
    query = select(row.id, row.erased_at).where(row.id.in_(set(tenant_ids))).order_by(row.id)
    found = await session.execute(query.with_for_update(read=True, key_share=True))
    return {tenant_id for tenant_id, erased_at in found if erased_at is not None}


async def get_key(
    session: AsyncSession, tenant_id: str, key_id: str, *, lock: bool = False
) -> ApiKeyRow | None:
    query = select(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id, ApiKeyRow.id == key_id)
    found: ApiKeyRow | None = await session.scalar(
        query.with_for_update(key_share=True) if lock else query
    )
    return found
