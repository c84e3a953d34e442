"""Queries over adapters, versions and aliases, in the session of one tenant (row-level security
holds) or of the operator. No decisions, no commits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Select, Text, cast, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from tenora_engine.adapters.identity import config_key, draft_key, weights_key
from tenora_platform.db import in_slices
from tenora_platform.paging import having
from tenora_platform.registry.tables import (
    AdapterAliasRow,
    AdapterRow,
    AdapterVersionRow,
    UploadPartRow,
    UploadRow,
)
from tenora_platform.tenants.tables import TenantRow

SERVABLE = ("active", "deprecated")
PENDING = ("quarantined", "validating")
OPEN = ("pending", "completed")  # of uploads


async def adapter_by_name(
    session: AsyncSession, tenant_id: str, name: str, *, for_update: bool = False
) -> AdapterRow | None:
    query = select(AdapterRow).where(
        AdapterRow.tenant_id == tenant_id,
        AdapterRow.name == name,
        AdapterRow.deleted_at.is_(None),
    )
    found: AdapterRow | None = await session.scalar(
        query.with_for_update(key_share=True) if for_update else query
    )
    return found


async def versions_of(
    session: AsyncSession, adapter_ids: Sequence[str], *, with_reports: bool = True
) -> Sequence[AdapterVersionRow]:
    """Newest first."""
    query = (
        select(AdapterVersionRow)
        .where(AdapterVersionRow.adapter_id.in_(adapter_ids))
        .order_by(AdapterVersionRow.number.desc())
    )
    if not with_reports:
        query = query.options(defer(AdapterVersionRow.report, raiseload=True))
    return (await session.scalars(query)).all()


async def short_reports(
    session: AsyncSession, adapter_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """By version, without the picture: kilobytes for each are for who asks for that version."""
    version = AdapterVersionRow
    path = cast(["facts", "picture"], ARRAY(Text))
    query = select(version.id, version.report.op("#-")(path)).where(
        version.adapter_id.in_(adapter_ids), version.report.is_not(None)
    )
    found = await session.execute(query)
    return {version_id: report for version_id, report in found}  # noqa: C416 - rows are no pairs


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


async def drop_aliases(session: AsyncSession, adapter_id: str) -> None:
    await session.execute(delete(AdapterAliasRow).where(AdapterAliasRow.adapter_id == adapter_id))


async def stored_bytes(session: AsyncSession, tenant_id: str, besides: str | None = None) -> int:
    """What the tenant's versions take, those still being checked included, what its open uploads
    were declared with, and what is reserved for weights that come now (`besides`: not for these).
    """
    versions = select(func.coalesce(func.sum(AdapterVersionRow.bytes), 0)).where(
        AdapterVersionRow.tenant_id == tenant_id,
        AdapterVersionRow.state.in_((*SERVABLE, *PENDING)),
    )
    uploads = select(func.coalesce(func.sum(UploadRow.bytes), 0)).where(
        UploadRow.tenant_id == tenant_id,
        UploadRow.status.in_((*OPEN, "receiving")),
        UploadRow.expires_at > func.now(),
        UploadRow.id != (besides or ""),
    )
    total = versions.scalar_subquery() + uploads.scalar_subquery()
    return int(await session.scalar(select(total)) or 0)


def open_uploads(tenant_id: str, now: datetime) -> Select[Any]:
    """How many there are."""
    return select(func.count()).where(
        UploadRow.tenant_id == tenant_id, UploadRow.status.in_(OPEN), UploadRow.expires_at > now
    )


async def uploads_going_on(
    session: AsyncSession, tenant_id: str, now: datetime
) -> Sequence[tuple[UploadRow, int, int]]:
    """(upload, bytes that have come, in how many parts), the newest first. A part that occurs twice
    in a completed file has come once."""
    part = UploadPartRow
    query = (
        select(UploadRow, func.coalesce(func.sum(part.bytes), 0), func.count(part.id))
        .outerjoin(part, part.upload_id == UploadRow.id)
        .where(
            UploadRow.tenant_id == tenant_id,
            UploadRow.status.in_(OPEN),
            UploadRow.expires_at > now,
        )
        .group_by(UploadRow.id)
        .order_by(UploadRow.id.desc())
    )
    return [(row, int(received), parts) for row, received, parts in await session.execute(query)]


async def claim_upload(session: AsyncSession, upload_id: str) -> bool:
    """Use a completed upload up; says whether it was there to be used. Of two transactions that
    claim it, one waits for the other and then finds it used."""
    statement = (
        update(UploadRow)
        .where(UploadRow.id == upload_id, UploadRow.status == "completed")
        .values(status="used")
        .returning(UploadRow.id)
    )
    return (await session.scalar(statement)) is not None


async def parts_of(session: AsyncSession, upload_id: str) -> Sequence[UploadPartRow]:
    """As they came."""
    query = (
        select(UploadPartRow).where(UploadPartRow.upload_id == upload_id).order_by(UploadPartRow.id)
    )
    return (await session.scalars(query)).all()


async def drop_parts(
    session: AsyncSession, upload_id: str, *, keep: Sequence[str]
) -> Sequence[str]:
    """Forget the other parts; their ids."""
    statement = (
        delete(UploadPartRow)
        .where(UploadPartRow.upload_id == upload_id, UploadPartRow.id.not_in(keep))
        .returning(UploadPartRow.id)
    )
    return (await session.scalars(statement)).all()


async def ordered_parts(session: AsyncSession, upload_id: str) -> Sequence[str]:
    """The parts of a completed upload, in the file's order."""
    ordered = await session.scalar(select(UploadRow.part_ids).where(UploadRow.id == upload_id))
    return ordered or ()


async def adapter_count(session: AsyncSession, tenant_id: str) -> int:
    query = select(func.count()).where(
        AdapterRow.tenant_id == tenant_id, AdapterRow.deleted_at.is_(None)
    )
    return int(await session.scalar(query) or 0)


async def servable_versions(
    session: AsyncSession,
    tenant_id: str,
    *,
    names: Sequence[str] | None = None,
    q: str | None = None,
    limit: int | None = None,
) -> Sequence[tuple[str, AdapterVersionRow]]:
    """(adapter name, newest active version) of every adapter that has one, by name; of these
    `names`, with `q` in them, the first `limit`."""
    query = (
        select(AdapterRow.name, AdapterVersionRow)
        .join(AdapterVersionRow, AdapterVersionRow.adapter_id == AdapterRow.id)
        .where(
            AdapterRow.tenant_id == tenant_id,
            AdapterRow.deleted_at.is_(None),
            AdapterVersionRow.state == "active",
            *having(q, AdapterRow.name),
        )
        .ext(distinct_on(AdapterRow.name))
        .order_by(AdapterRow.name, AdapterVersionRow.number.desc())
        .limit(limit)
    )
    if names is not None:
        query = query.where(AdapterRow.name.in_(names))
    return [(name, version) async for name, version in in_slices(session, query)]


async def pending_versions(session: AsyncSession, limit: int) -> Sequence[AdapterVersionRow]:
    """Of all tenants in turn, who was longest ago first: each one's first, then each one's second.
    One's own by age, those after them that were begun already. For the operator's session."""
    version = AdapterVersionRow
    turns = (
        select(version.tenant_id, func.max(version.check_begun_at).label("turn"))
        .where(version.tenant_id.in_(select(version.tenant_id).where(version.state.in_(PENDING))))
        .group_by(version.tenant_id)
        .subquery()
    )
    order = (version.check_begun_at.asc().nulls_first(), version.created_at, version.id)
    place = func.row_number().over(partition_by=version.tenant_id, order_by=order)
    query = (
        select(version)
        .join(turns, turns.c.tenant_id == version.tenant_id)
        .where(version.state.in_(PENDING))
        .order_by(place, turns.c.turn.asc().nulls_first(), version.created_at, version.id)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def begin_check(session: AsyncSession, version_id: str, now: datetime) -> int | None:
    """It is being checked from now on, for the so-manieth time; None if it waits no more."""
    statement = (
        update(AdapterVersionRow)
        .where(AdapterVersionRow.id == version_id, AdapterVersionRow.state.in_(PENDING))
        .values(
            state="validating",
            check_begun_at=now,
            check_attempts=AdapterVersionRow.check_attempts + 1,
        )
        .returning(AdapterVersionRow.check_attempts)
    )
    attempts: int | None = await session.scalar(statement)
    return attempts


async def uncount_check(session: AsyncSession, version_id: str) -> None:
    """What kept it from its end was no crash."""
    version = AdapterVersionRow
    statement = (
        update(version)
        .where(version.id == version_id, version.check_attempts > 0)
        .values(check_attempts=version.check_attempts - 1)
    )
    await session.execute(statement)


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


async def revoked_since(session: AsyncSession, since: datetime) -> Sequence[AdapterVersionRow]:
    """Of all tenants: for the operator."""
    query = select(AdapterVersionRow).where(
        AdapterVersionRow.state == "revoked", AdapterVersionRow.revoked_at >= since
    )
    return (await session.scalars(query)).all()


async def suspended_since(session: AsyncSession, since: datetime) -> Sequence[TenantRow]:
    """Suspended tenants whose row has changed since: for the operator."""
    query = select(TenantRow).where(TenantRow.status == "suspended", TenantRow.updated_at >= since)
    return (await session.scalars(query)).all()


async def is_active_group(session: AsyncSession, group: str) -> bool:
    """Whether any tenant of a trust group may ask for anything."""
    query = select(TenantRow.id).where(TenantRow.trust_group == group, TenantRow.status == "active")
    return (await session.scalar(query.limit(1))) is not None


async def trust_group(session: AsyncSession, tenant_id: str) -> str | None:
    group: str | None = await session.scalar(
        select(TenantRow.trust_group).where(TenantRow.id == tenant_id)
    )
    return group


async def unreleased_versions(
    session: AsyncSession, revoked_before: datetime, limit: int, *, but_for: Sequence[str] = ()
) -> Sequence[AdapterVersionRow]:
    """Revoked versions whose content may still lie in the store, oldest first."""
    query = (
        select(AdapterVersionRow)
        .where(
            AdapterVersionRow.state == "revoked",
            AdapterVersionRow.released_at.is_(None),
            AdapterVersionRow.revoked_at <= revoked_before,
            AdapterVersionRow.id.not_in(but_for),
        )
        .order_by(AdapterVersionRow.revoked_at)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def checked_uploads(
    session: AsyncSession, limit: int, *, but_for: Sequence[str] = ()
) -> Sequence[AdapterVersionRow]:
    """Versions past their check whose upload may still lie in the store: for the operator."""
    query = (
        select(AdapterVersionRow)
        .where(AdapterVersionRow.staging_key.is_not(None), AdapterVersionRow.state.not_in(PENDING))
        .where(AdapterVersionRow.id.not_in(but_for))
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
        .where(UploadRow.status.in_(OPEN), UploadRow.expires_at <= now)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
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


async def staged_versions(session: AsyncSession, ids: Sequence[str]) -> set[str]:
    """Which of these versions still need their upload, or are coming: for the operator. One
    statement, for a version takes over from its reservation in one transaction."""
    made = select(AdapterVersionRow.id).where(
        AdapterVersionRow.id.in_(ids), AdapterVersionRow.staging_key.is_not(None)
    )
    coming = select(UploadRow.id).where(UploadRow.id.in_(ids), UploadRow.status == "receiving")
    return set(await session.scalars(made.union(coming)))


async def kept_uploads(session: AsyncSession, ids: Sequence[str]) -> set[str]:
    """Which of these uploads are open, or a version still needs: for the operator."""
    open_ = select(UploadRow.id).where(UploadRow.id.in_(ids), UploadRow.status.in_(OPEN))
    used = select(AdapterVersionRow.upload_id).where(
        AdapterVersionRow.upload_id.in_(ids), AdapterVersionRow.staging_key.is_not(None)
    )
    return {upload for upload in await session.scalars(open_.union(used)) if upload is not None}


async def kept_digests(session: AsyncSession, digests: Sequence[str]) -> set[str]:
    """Which of these contents, draft layers among them, a version serves, may serve once it has
    been checked, or has not released yet: for the operator."""
    version = AdapterVersionRow
    owns = or_(version.state.in_(SERVABLE), version.released_at.is_(None))
    contents = select(version.digest).where(version.digest.in_(digests), owns)
    layers = select(version.draft_layer_digest).where(
        version.draft_layer_digest.in_(digests), owns, version.state != "rejected"
    )
    query = contents.union(layers)
    return {digest for digest in await session.scalars(query) if digest is not None}


async def served_files(session: AsyncSession) -> dict[str, str]:
    """Paths of all that versions may be asked for, each with its digest: for the operator."""
    version = AdapterVersionRow
    serves = version.state.in_(SERVABLE)
    contents = await session.scalars(select(version.digest).where(serves).distinct())
    layers = await session.scalars(select(version.draft_layer_digest).where(serves).distinct())
    files = {key(each): each for each in contents if each for key in (config_key, weights_key)}
    return files | {draft_key(each): each for each in layers if each}


async def served_digests(session: AsyncSession) -> set[str]:
    """Contents of all versions that may be asked for, draft layers among them: for the operator."""
    version = AdapterVersionRow
    serves = version.state.in_(SERVABLE)
    query = (
        select(version.digest).where(serves).union(select(version.draft_layer_digest).where(serves))
    )
    return {digest for digest in await session.scalars(query) if digest is not None}
