"""Queries over adapters, versions and aliases, in the session of one tenant (row-level security
holds) or of the operator. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.registry.tables import (
    AdapterAliasRow,
    AdapterRow,
    AdapterVersionRow,
    UploadPartRow,
    UploadRow,
)

SERVABLE = ("active", "deprecated")
PENDING = ("quarantined", "validating")


async def lock(session: AsyncSession, name: str) -> None:
    """Serialise what names the same thing until the transaction ends."""
    statement = text("select pg_advisory_xact_lock(hashtextextended(:name, 0))")
    await session.execute(statement, {"name": name})


async def try_lock(session: AsyncSession, name: str) -> bool:
    statement = text("select pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
    return bool(await session.scalar(statement, {"name": name}))


async def adapter_by_name(
    session: AsyncSession, tenant_id: str, name: str, *, for_update: bool = False
) -> AdapterRow | None:
    query = select(AdapterRow).where(
        AdapterRow.tenant_id == tenant_id,
        AdapterRow.name == name,
        AdapterRow.deleted_at.is_(None),
    )
    found: AdapterRow | None = await session.scalar(
        query.with_for_update() if for_update else query
    )
    return found


async def adapters_page(
    session: AsyncSession, tenant_id: str, *, after: str | None, limit: int, descending: bool
) -> Sequence[AdapterRow]:
    """`limit` + 1 rows at most, so that the caller sees whether there are more."""
    query = select(AdapterRow).where(
        AdapterRow.tenant_id == tenant_id, AdapterRow.deleted_at.is_(None)
    )
    if after is not None:
        query = query.where(AdapterRow.id < after if descending else AdapterRow.id > after)
    order = AdapterRow.id.desc() if descending else AdapterRow.id.asc()
    return (await session.scalars(query.order_by(order).limit(limit + 1))).all()


async def versions_of(
    session: AsyncSession, adapter_ids: Sequence[str]
) -> Sequence[AdapterVersionRow]:
    """Newest first."""
    query = (
        select(AdapterVersionRow)
        .where(AdapterVersionRow.adapter_id.in_(adapter_ids))
        .order_by(AdapterVersionRow.number.desc())
    )
    return (await session.scalars(query)).all()


async def version_of(
    session: AsyncSession, adapter_id: str, number: int
) -> AdapterVersionRow | None:
    query = select(AdapterVersionRow).where(
        AdapterVersionRow.adapter_id == adapter_id, AdapterVersionRow.number == number
    )
    found: AdapterVersionRow | None = await session.scalar(query)
    return found


async def aliases_of(
    session: AsyncSession, adapter_ids: Sequence[str]
) -> Sequence[AdapterAliasRow]:
    query = (
        select(AdapterAliasRow)
        .where(AdapterAliasRow.adapter_id.in_(adapter_ids))
        .order_by(AdapterAliasRow.alias)
    )
    return (await session.scalars(query)).all()


async def put_alias(session: AsyncSession, row: AdapterAliasRow) -> AdapterAliasRow:
    """Make or replace the alias, in one statement."""
    values = {
        "tenant_id": row.tenant_id,
        "adapter_id": row.adapter_id,
        "alias": row.alias,
        "targets": row.targets,
    }
    statement = (
        insert(AdapterAliasRow)
        .values(values)
        .on_conflict_do_update(
            index_elements=["tenant_id", "adapter_id", "alias"],
            set_={"targets": row.targets, "updated_at": func.now()},
        )
        .returning(AdapterAliasRow)
    )
    return (await session.scalars(statement)).one()


async def drop_aliases(session: AsyncSession, adapter_id: str) -> None:
    await session.execute(delete(AdapterAliasRow).where(AdapterAliasRow.adapter_id == adapter_id))


async def stored_bytes(session: AsyncSession, tenant_id: str) -> int:
    """What the tenant's versions take, those still being checked included."""
    query = select(func.coalesce(func.sum(AdapterVersionRow.bytes), 0)).where(
        AdapterVersionRow.tenant_id == tenant_id,
        AdapterVersionRow.state.in_((*SERVABLE, *PENDING)),
    )
    return int(await session.scalar(query) or 0)


async def adapter_count(session: AsyncSession, tenant_id: str) -> int:
    query = select(func.count()).where(
        AdapterRow.tenant_id == tenant_id, AdapterRow.deleted_at.is_(None)
    )
    return int(await session.scalar(query) or 0)


async def servable_versions(
    session: AsyncSession, tenant_id: str
) -> Sequence[tuple[str, AdapterVersionRow]]:
    """(adapter name, newest active version) of every adapter that has one."""
    query = (
        select(AdapterRow.name, AdapterVersionRow)
        .join(AdapterVersionRow, AdapterVersionRow.adapter_id == AdapterRow.id)
        .where(
            AdapterRow.tenant_id == tenant_id,
            AdapterRow.deleted_at.is_(None),
            AdapterVersionRow.state == "active",
        )
        .ext(distinct_on(AdapterRow.name))
        .order_by(AdapterRow.name, AdapterVersionRow.number.desc())
    )
    return [(name, version) for name, version in await session.execute(query)]


async def pending_versions(session: AsyncSession, limit: int) -> Sequence[AdapterVersionRow]:
    """Oldest first, of all tenants: for the operator's session."""
    query = (
        select(AdapterVersionRow)
        .where(AdapterVersionRow.state.in_(PENDING))
        .order_by(AdapterVersionRow.created_at)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def move_state(
    session: AsyncSession, version_id: str, to: str, *, when: Sequence[str], **values: object
) -> bool:
    """Change the state if it is one of `when` still; says whether it was."""
    statement = (
        update(AdapterVersionRow)
        .where(AdapterVersionRow.id == version_id, AdapterVersionRow.state.in_(when))
        .values(state=to, **values)
        .returning(AdapterVersionRow.id)
    )
    return (await session.scalar(statement)) is not None


async def digest_in_use(session: AsyncSession, digest: str, tenant_id: str | None = None) -> bool:
    """Whether any servable version (of one tenant, or of all) has this content."""
    query = select(AdapterVersionRow.id).where(
        AdapterVersionRow.digest == digest, AdapterVersionRow.state.in_(SERVABLE)
    )
    if tenant_id is not None:
        query = query.where(AdapterVersionRow.tenant_id == tenant_id)
    return (await session.scalar(query.limit(1))) is not None


async def unreleased_versions(
    session: AsyncSession, revoked_before: datetime, limit: int
) -> Sequence[AdapterVersionRow]:
    """Revoked versions whose content may still lie in the store, oldest first."""
    query = (
        select(AdapterVersionRow)
        .where(
            AdapterVersionRow.state == "revoked",
            AdapterVersionRow.released_at.is_(None),
            AdapterVersionRow.revoked_at <= revoked_before,
        )
        .order_by(AdapterVersionRow.revoked_at)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def checked_uploads(session: AsyncSession, limit: int) -> Sequence[AdapterVersionRow]:
    """Versions past their check whose upload may still lie in the store: for the operator."""
    query = (
        select(AdapterVersionRow)
        .where(AdapterVersionRow.staging_key.is_not(None), AdapterVersionRow.state.not_in(PENDING))
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def forget_upload(session: AsyncSession, version_id: str) -> None:
    """Call it once the store has given the upload back."""
    statement = (
        update(AdapterVersionRow).where(AdapterVersionRow.id == version_id).values(staging_key=None)
    )
    await session.execute(statement)


async def expire_uploads(session: AsyncSession, now: datetime, limit: int) -> dict[str, list[str]]:
    """Mark uploads whose time is over; their ids with the ids of their parts."""
    due = (
        select(UploadRow.id)
        .where(UploadRow.status.in_(("pending", "completed")), UploadRow.expires_at <= now)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    statement = (
        update(UploadRow)
        .where(UploadRow.id.in_(due))
        .values(status="expired")
        .returning(UploadRow.id)
    )
    parts: dict[str, list[str]] = {upload: [] for upload in await session.scalars(statement)}
    query = select(UploadPartRow.upload_id, UploadPartRow.id).where(
        UploadPartRow.upload_id.in_(parts)
    )
    for upload_id, part_id in await session.execute(query):
        parts[upload_id].append(part_id)
    return parts
