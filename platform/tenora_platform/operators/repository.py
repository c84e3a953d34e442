"""Queries of admin keys, in the operator's sessions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.asking import OPERATOR, take
from tenora_platform.kept_keys import of_prefix
from tenora_platform.operators.tables import AdminKeyRow


async def list_keys(session: AsyncSession, *, after: str | None, limit: int) -> list[AdminKeyRow]:
    """Newest first, ended ones included; one more than `limit`."""
    query = select(AdminKeyRow).order_by(AdminKeyRow.id.desc()).limit(limit + 1)
    if after is not None:
        query = query.where(AdminKeyRow.id < after)
    return list(await session.scalars(query))


async def get_key(session: AsyncSession, key_id: str) -> AdminKeyRow | None:
    """The row, locked."""
    return await session.get(AdminKeyRow, key_id, with_for_update={"key_share": True})


async def find_keys(session: AsyncSession, prefix: str) -> list[AdminKeyRow]:
    return list(await session.scalars(select(AdminKeyRow).where(of_prefix(AdminKeyRow, prefix))))


async def lock_owners(session: AsyncSession) -> None:
    """Until the transaction ends: one takes rights of the operator's away, and who has them has
    written or is refused."""
    await take(session, OPERATOR)


async def made_by(session: AsyncSession, makers: Iterable[str]) -> list[AdminKeyRow]:
    """The keys that these actors created, or were given the secret of, that those created, and so
    on, which have not been revoked; locked."""
    found: dict[str, AdminKeyRow] = {}
    asked = list(makers)
    while asked:
        theirs = or_(AdminKeyRow.created_by.in_(asked), AdminKeyRow.secret_by.in_(asked))
        query = select(AdminKeyRow).where(theirs)
        rows = await session.scalars(query.order_by(AdminKeyRow.id).with_for_update(key_share=True))
        new = [row for row in rows if row.id not in found]
        found |= {row.id: row for row in new}
        asked = [f"admin_key:{row.id}" for row in new]
    return [row for row in found.values() if row.revoked_at is None]


async def half_known_to(session: AsyncSession, maker: str) -> list[AdminKeyRow]:
    """The keys of which this actor has the secret before the present one, while it is good;
    locked."""
    query = select(AdminKeyRow).where(
        AdminKeyRow.revoked_at.is_(None),
        AdminKeyRow.previous_by == maker,
        AdminKeyRow.previous_expires_at > func.now(),
    )
    return list(
        await session.scalars(query.order_by(AdminKeyRow.id).with_for_update(key_share=True))
    )


async def has_other_owner(session: AsyncSession, key_ids: Collection[str]) -> bool:
    """Whether an owner's key would be left without these that does not end by itself."""
    query = select(func.count()).where(
        AdminKeyRow.role == "owner",
        AdminKeyRow.id.not_in(key_ids),
        AdminKeyRow.revoked_at.is_(None),
        AdminKeyRow.expires_at.is_(None),
    )
    return bool(await session.scalar(query))
