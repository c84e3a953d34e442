"""Holds pending erasures back where a database may be older than what was decided since: after a
restore, and when a store is adopted. A held tenant stays suspended, with all it has, until the
operator deletes or restores it again."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.tenants.tables import TenantRow


async def hold_erasures(session: AsyncSession, audit: AuditLog, actor: str) -> list[str]:
    """The ids of those that are held by this call; one that is held already is not among them."""
    query = select(TenantRow).where(
        TenantRow.erase_after.is_not(None), TenantRow.erased_at.is_(None)
    )
    held = list(await session.scalars(query.order_by(TenantRow.id).with_for_update(key_share=True)))
    for row in held:
        due, row.erase_after = row.erase_after, None
        await audit.append(
            session,
            actor=actor,
            action="tenant.hold_erasure",
            target=row.id,
            tenant_id=row.id,
            before={"erase_after": None if due is None else due.isoformat()},
        )
    return [row.id for row in held]


def in_words(held: list[str]) -> str | None:
    """What the operator is told; None where there is nothing to tell."""
    if not held:
        return None
    return (
        f"{len(held)} deleted tenants are not erased until you confirm it: {', '.join(held)}. They "
        "stay suspended. Erase one: tenora tenant delete ID. Take it back: tenora tenant restore "
        "ID."
    )
