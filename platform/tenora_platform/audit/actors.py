"""Who an entry's actor is, in words: an email, or what a key is called. Knows the tables of keys
and people to read names from, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.operators.tables import AdminKeyRow
from tenora_platform.people.tables import PersonRow
from tenora_platform.tenants.tables import ApiKeyRow


async def names_of(
    session: AsyncSession, actors: Iterable[str], *, by_operator: bool
) -> dict[str, str]:
    """Of those whose names the session may read; a tenant's (`by_operator` false) knows its own
    keys and people, and of the operator's only that they are."""
    ids: dict[str, set[str]] = {"person": set(), "api_key": set(), "admin_key": set()}
    for actor in actors:
        kind, _, id_ = actor.partition(":")
        if kind in ids:
            ids[kind].add(id_)
    person = func.coalesce(PersonRow.email, PersonRow.name)
    queries = {
        "person": select(PersonRow.id, person).where(PersonRow.id.in_(ids["person"])),
        "api_key": select(ApiKeyRow.id, ApiKeyRow.name).where(ApiKeyRow.id.in_(ids["api_key"])),
    }
    if by_operator:
        queries["admin_key"] = select(AdminKeyRow.id, AdminKeyRow.name).where(
            AdminKeyRow.id.in_(ids["admin_key"])
        )
    found = {} if by_operator else {f"admin_key:{id_}": "operator" for id_ in ids["admin_key"]}
    for kind, query in queries.items():
        if ids[kind]:
            rows = await session.execute(query)
            found |= {f"{kind}:{id_}": name for id_, name in rows if name}
    return found
