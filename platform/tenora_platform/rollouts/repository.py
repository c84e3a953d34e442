"""Queries over aliases, their changes and roll-outs. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.registry.tables import AdapterAliasRow, AdapterRow
from tenora_platform.rollouts.tables import AliasChangeRow, RolloutRow


async def alias_of(session: AsyncSession, adapter_id: str, alias: str) -> AdapterAliasRow | None:
    query = select(AdapterAliasRow).where(
        AdapterAliasRow.adapter_id == adapter_id, AdapterAliasRow.alias == alias
    )
    found: AdapterAliasRow | None = await session.scalar(query)
    return found


async def put_alias(session: AsyncSession, values: dict[str, Any]) -> AdapterAliasRow:
    """Make or replace the alias, in one statement."""
    key = ["tenant_id", "adapter_id", "alias"]
    changed = {name: value for name, value in values.items() if name not in key}
    statement = (
        insert(AdapterAliasRow)
        .values(values)
        .on_conflict_do_update(index_elements=key, set_={**changed, "updated_at": func.now()})
        .returning(AdapterAliasRow)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(statement)).one()


async def drop_alias(session: AsyncSession, adapter_id: str, alias: str) -> None:
    await session.execute(
        delete(AdapterAliasRow).where(
            AdapterAliasRow.adapter_id == adapter_id, AdapterAliasRow.alias == alias
        )
    )


async def changes_of(
    session: AsyncSession, adapter_id: str, alias: str, *, after: str | None, limit: int
) -> Sequence[AliasChangeRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(AliasChangeRow)
        .where(AliasChangeRow.adapter_id == adapter_id, AliasChangeRow.alias == alias)
        .order_by(AliasChangeRow.no.desc())
        .limit(limit + 1)
    )
    if after is not None:
        last = select(AliasChangeRow.no).where(AliasChangeRow.id == after).scalar_subquery()
        query = query.where(AliasChangeRow.no < last)
    return (await session.scalars(query)).all()


async def last_move(session: AsyncSession, adapter_id: str, alias: str) -> AliasChangeRow | None:
    """The last change of its targets."""
    before, after = AliasChangeRow.before["targets"], AliasChangeRow.after["targets"]
    query = (
        select(AliasChangeRow)
        .where(
            AliasChangeRow.adapter_id == adapter_id,
            AliasChangeRow.alias == alias,
            before.is_distinct_from(after),
        )
        .order_by(AliasChangeRow.no.desc())
        .limit(1)
    )
    found: AliasChangeRow | None = await session.scalar(query)
    return found


async def lately_changed(session: AsyncSession, since: datetime) -> Sequence[str]:
    """Tenants some alias of whom was changed since: for the operator."""
    query = select(AliasChangeRow.tenant_id).where(AliasChangeRow.at >= since).distinct()
    return (await session.scalars(query)).all()


async def last_rollout(session: AsyncSession, adapter_id: str, alias: str) -> RolloutRow | None:
    query = (
        select(RolloutRow)
        .where(RolloutRow.adapter_id == adapter_id, RolloutRow.alias == alias)
        .order_by((RolloutRow.state == "running").desc(), RolloutRow.id.desc())
        .limit(1)
    )
    found: RolloutRow | None = await session.scalar(query)
    return found


async def running_rollout(session: AsyncSession, adapter_id: str, alias: str) -> RolloutRow | None:
    """Locked."""
    query = (
        select(RolloutRow)
        .where(
            RolloutRow.adapter_id == adapter_id,
            RolloutRow.alias == alias,
            RolloutRow.state == "running",
        )
        .with_for_update(key_share=True)
    )
    found: RolloutRow | None = await session.scalar(query)
    return found


async def rollout_by_id(session: AsyncSession, rollout_id: str) -> RolloutRow | None:
    return await session.get(RolloutRow, rollout_id)


async def all_running(session: AsyncSession) -> Sequence[RolloutRow]:
    """Of all tenants, oldest first: for the operator."""
    query = select(RolloutRow).where(RolloutRow.state == "running").order_by(RolloutRow.id)
    return (await session.scalars(query)).all()


async def adapter_of(session: AsyncSession, adapter_id: str) -> AdapterRow | None:
    """Locked, unless it has been deleted."""
    query = (
        select(AdapterRow)
        .where(AdapterRow.id == adapter_id, AdapterRow.deleted_at.is_(None))
        .with_for_update(key_share=True)
    )
    found: AdapterRow | None = await session.scalar(query)
    return found
