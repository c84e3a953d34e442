"""Whose a namespace is, which the engine's numbers are told by. A tenant's is noted in its row by
whoever first looks for one, so that finding a few reads a few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import tenant_namespace
from tenora_platform.db import is_read_only
from tenora_platform.secret import ServerSecret
from tenora_platform.tenants.tables import TenantRow

_NOTED_AT_ONCE = 5_000
_NOTE = text(
    "UPDATE tenants t SET namespace = new.namespace "
    "FROM unnest(CAST(:ids AS text[]), CAST(:namespaces AS text[])) AS new (id, namespace) "
    "WHERE t.id = new.id"
)


async def owners_of(
    session: AsyncSession, secret: ServerSecret, namespaces: Collection[str]
) -> dict[str, list[TenantRow]]:
    """Namespace -> its tenants (several in a trust group), by id. Needs an admin session."""
    if not namespaces:
        return {}
    await _note(session, secret)
    owners: dict[str, list[TenantRow]] = defaultdict(list)
    query = select(TenantRow).where(TenantRow.namespace.in_(namespaces)).order_by(TenantRow.id)
    for row in await session.scalars(query):
        owners[row.namespace or ""].append(row)
    return owners


async def names_of(session: AsyncSession, tenant_ids: Collection[str]) -> dict[str, str]:
    """By id, of those that there are."""
    query = select(TenantRow.id, TenantRow.name).where(TenantRow.id.in_(tenant_ids))
    return {row.id: row.name for row in await session.execute(query)}


async def _note(session: AsyncSession, secret: ServerSecret) -> None:
    """Of tenants that are new, or have another trust group: there are seldom any. Those that
    somebody changes at this moment are nobody's to wait for."""
    if await is_read_only(session):
        return
    query = (
        select(TenantRow.id, TenantRow.trust_group)
        .where(TenantRow.namespace.is_(None))
        .limit(_NOTED_AT_ONCE)
        .with_for_update(key_share=True, skip_locked=True)
    )
    found = {
        id_: tenant_namespace(secret, id_, group) for id_, group in await session.execute(query)
    }
    if found:
        values = {"ids": list(found), "namespaces": list(found.values())}
        await session.execute(_NOTE, values)
