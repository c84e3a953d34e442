"""Keys that come from other keys: they share those keys' limits, and end with them. It reads rows,
and decides nothing about requests."""

from __future__ import annotations

from sqlalchemy import any_, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.contexts import Caps, ParentKey
from tenora_platform.errors import BadRequestError, UnauthorizedError
from tenora_platform.kept_keys import has_passed, known_to
from tenora_platform.tenants.tables import ApiKeyRow

LINEAGE_MAX = 4
"""Keys that one key may come from: a request is counted under each of them."""


async def parents_of(session: AsyncSession, row: ApiKeyRow) -> tuple[ParentKey, ...]:
    """The keys that it comes from, the nearest first. Raises UnauthorizedError if one of them has
    ended, which ends this one too."""
    if not row.lineage:
        return ()
    found = await session.scalars(select(ApiKeyRow).where(ApiKeyRow.id.in_(row.lineage)))
    parents = {parent.id: parent for parent in found}
    if len(parents) < len(row.lineage) or any(map(_has_ended, parents.values())):
        raise UnauthorizedError(
            "This API key ended with the key that created it; use another key.", code="key_revoked"
        )
    return tuple(ParentKey(each, Caps(**parents[each].limits)) for each in row.lineage)


async def lineage_from(session: AsyncSession, tenant_id: str, key_id: str | None) -> list[str]:
    """The lineage of a key that this key creates (None: nobody's). The key cannot end before the
    transaction does. Raises UnauthorizedError for one that has ended, and BadRequestError where the
    lineage would be too long."""
    if key_id is None:
        return []
    query = select(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id, ApiKeyRow.id == key_id)
    query = query.with_for_update(read=True).execution_options(populate_existing=True)
    row = (await session.scalars(query)).one()
    if _has_ended(row):
        raise UnauthorizedError(
            "This API key has been revoked; use another key.", code="key_revoked"
        )
    if len(row.lineage) >= LINEAGE_MAX:
        raise BadRequestError(
            f"A key can come from at most {LINEAGE_MAX} other keys, each created by the next. "
            "Create this one with a key nearer to the first.",
            code="key_lineage_too_long",
        )
    return [row.id, *row.lineage]


async def children_of(session: AsyncSession, tenant_id: str, key_id: str) -> list[ApiKeyRow]:
    """All that come from this key and have not been revoked, locked."""
    query = select(ApiKeyRow).where(
        ApiKeyRow.tenant_id == tenant_id,
        literal(key_id) == any_(ApiKeyRow.lineage),
        ApiKeyRow.revoked_at.is_(None),
    )
    query = query.order_by(ApiKeyRow.id).with_for_update(key_share=True)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def made_by(session: AsyncSession, tenant_id: str, maker: str) -> list[ApiKeyRow]:
    """Those that have not been revoked and that this actor created, or has a secret of; locked."""
    query = select(ApiKeyRow).where(ApiKeyRow.tenant_id == tenant_id, known_to(ApiKeyRow, [maker]))
    query = query.order_by(ApiKeyRow.id).with_for_update(key_share=True)
    return list(await session.scalars(query.execution_options(populate_existing=True)))


def _has_ended(row: ApiKeyRow) -> bool:
    return row.revoked_at is not None or has_passed(row.expires_at)
