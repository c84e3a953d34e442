"""Queries of probes and their prompts. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.probing.tables import AdapterProbePromptsRow, AdapterProbeRow
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow

Due = tuple[AdapterVersionRow, str, list[str] | None, int]
"""A version, its adapter's name, its tenant's prompts if it has any, and earlier attempts."""


async def next_due(session: AsyncSession, now: datetime) -> Due | None:
    """An active version that is to be asked: of each tenant the newest first, so that one with a
    thousand holds up nobody else's. The database notes each that becomes active as waiting, and
    has an index of those."""
    turn = func.row_number().over(
        partition_by=AdapterVersionRow.tenant_id, order_by=AdapterVersionRow.activated_at.desc()
    )
    probe = AdapterProbeRow
    query = (
        select(AdapterVersionRow, AdapterRow.name, AdapterProbePromptsRow.prompts, probe.attempts)
        .select_from(probe)
        .join(AdapterVersionRow, AdapterVersionRow.id == probe.version_id)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .outerjoin(AdapterProbePromptsRow, AdapterProbePromptsRow.adapter_id == AdapterRow.id)
        .where(AdapterVersionRow.state == "active", probe.state == "waiting", probe.next_at <= now)
        .order_by(turn, AdapterVersionRow.activated_at)
        .limit(1)
    )
    found = (await session.execute(query)).first()
    return None if found is None else (found[0], found[1], found[2], found[3])


async def count_waiting(session: AsyncSession, most: int) -> int:
    """Active versions that are still to be asked, now or later; of more than `most` no more are
    counted."""
    waiting = (
        select(AdapterVersionRow.id)
        .join(AdapterProbeRow, AdapterProbeRow.version_id == AdapterVersionRow.id)
        .where(AdapterVersionRow.state == "active", AdapterProbeRow.state == "waiting")
        .limit(most)
        .subquery()
    )
    return await session.scalar(select(func.count()).select_from(waiting)) or 0


async def put_probe(session: AsyncSession, version: AdapterVersionRow, **values: Any) -> None:
    statement = insert(AdapterProbeRow).values(
        version_id=version.id, tenant_id=version.tenant_id, **values
    )
    await session.execute(
        statement.on_conflict_do_update(index_elements=["version_id"], set_=values)
    )


async def ask_again(
    session: AsyncSession, adapter_id: str, now: datetime, not_before: datetime
) -> None:
    """The adapter's newest active version; one that was asked lately, when it was long enough ago
    (`not_before` of another one's last time is what `now` is of this one's)."""
    newest = (
        select(AdapterVersionRow.id)
        .where(AdapterVersionRow.adapter_id == adapter_id, AdapterVersionRow.state == "active")
        .order_by(AdapterVersionRow.number.desc())
        .limit(1)
    )
    wait = func.greatest(func.coalesce(AdapterProbeRow.probed_at + (now - not_before), now), now)
    await session.execute(
        update(AdapterProbeRow)
        .where(AdapterProbeRow.version_id == newest.scalar_subquery())
        .values(state="waiting", attempts=0, next_at=wait)
    )


async def prompts_of(session: AsyncSession, adapter_id: str) -> list[str] | None:
    row = await session.get(AdapterProbePromptsRow, adapter_id)
    return None if row is None else row.prompts or None


async def put_prompts(session: AsyncSession, adapter: AdapterRow, prompts: Sequence[str]) -> None:
    values = {"prompts": list(prompts), "updated_at": func.now()}
    statement = insert(AdapterProbePromptsRow).values(
        adapter_id=adapter.id, tenant_id=adapter.tenant_id, **values
    )
    await session.execute(
        statement.on_conflict_do_update(index_elements=["adapter_id"], set_=values)
    )
