"""Queries of people, memberships and invitations. Which rows they may touch is the session's
matter."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.asking import OPERATOR, take
from tenora_platform.audit.tables import AuditRow
from tenora_platform.errors import UnauthorizedError
from tenora_platform.ids import new_id
from tenora_platform.people.oidc import Identity
from tenora_platform.people.tables import InvitationRow, MembershipRow, PersonRow, SessionRow

_KEPT = timedelta(days=30)  # an invitation after its end


async def put_person(session: AsyncSession, identity: Identity) -> PersonRow:
    """The person of this issuer and subject, made or brought up to date."""
    said = {
        "email": identity.email,
        "email_verified": identity.email_verified,
        "name": identity.name,
    }
    statement = (
        insert(PersonRow)
        .values(id=new_id("person"), issuer=identity.issuer, subject=identity.subject, **said)
        .on_conflict_do_update(
            index_elements=[PersonRow.issuer, PersonRow.subject],
            set_={**said, "signed_in_at": func.now()},
        )
        .returning(PersonRow)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(statement)).one()


async def list_members(
    session: AsyncSession, tenant_id: str | None, *, after: str | None, limit: int
) -> list[tuple[MembershipRow, PersonRow]]:
    """By person, newest first; one more than `limit`."""
    query = (
        select(MembershipRow, PersonRow)
        .join(PersonRow, PersonRow.id == MembershipRow.person_id)
        .where(_of(tenant_id))
        .order_by(PersonRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(PersonRow.id < after)
    return [(member, person) for member, person in await session.execute(query)]


async def get_member(
    session: AsyncSession, tenant_id: str | None, person_id: str
) -> tuple[MembershipRow, PersonRow] | None:
    found = await session.execute(
        select(MembershipRow, PersonRow)
        .join(PersonRow, PersonRow.id == MembershipRow.person_id)
        .where(_of(tenant_id), MembershipRow.person_id == person_id)
    )
    first = found.first()
    return None if first is None else (first[0], first[1])


async def memberships_of(session: AsyncSession, person_id: str) -> list[MembershipRow]:
    query = select(MembershipRow).where(MembershipRow.person_id == person_id)
    return list(await session.scalars(query))


async def lock_members(session: AsyncSession, tenant_id: str | None) -> None:
    """Until the transaction ends: one changes who belongs here, so that an owner is left, and who
    loses a right has written or is refused."""
    await take(session, tenant_id or OPERATOR)


async def has_other_owner(session: AsyncSession, tenant_id: str | None, person_id: str) -> bool:
    query = select(func.count()).where(
        _of(tenant_id), MembershipRow.role == "owner", MembershipRow.person_id != person_id
    )
    return bool(await session.scalar(query))


async def list_invitations(
    session: AsyncSession, tenant_id: str | None, *, after: str | None, limit: int
) -> list[InvitationRow]:
    """Newest first; one more than `limit`."""
    query = (
        select(InvitationRow)
        .where(InvitationRow.tenant_id.is_not_distinct_from(tenant_id))
        .order_by(InvitationRow.id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(InvitationRow.id < after)
    return list(await session.scalars(query))


async def get_invitation(
    session: AsyncSession, tenant_id: str | None, invitation_id: str
) -> InvitationRow | None:
    query = select(InvitationRow).where(
        InvitationRow.tenant_id.is_not_distinct_from(tenant_id), InvitationRow.id == invitation_id
    )
    found: InvitationRow | None = await session.scalar(query.with_for_update(key_share=True))
    return found


async def invitation_of_hash(
    session: AsyncSession, digest: str, *, lock: bool
) -> InvitationRow | None:
    """With `lock` as it is now, until the transaction ends: it is used once."""
    query = select(InvitationRow).where(InvitationRow.hash == digest)
    if lock:
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    found: InvitationRow | None = await session.scalar(query)
    return found


async def open_invitations_of(
    session: AsyncSession, makers: Iterable[str], tenant_id: str | None
) -> list[InvitationRow]:
    """Of these makers, to this tenant (None: to all, and to the operator's people, which are the
    first), locked."""
    query = select(InvitationRow).where(
        InvitationRow.created_by.in_(list(makers)),
        InvitationRow.used_at.is_(None),
        InvitationRow.expires_at > func.now(),
    )
    if tenant_id is not None:
        query = query.where(InvitationRow.tenant_id == tenant_id)
    order = (func.coalesce(InvitationRow.tenant_id, ""), InvitationRow.id)
    return list(await session.scalars(query.order_by(*order).with_for_update(key_share=True)))


async def last_removal(
    session: AsyncSession, tenant_id: str | None, person_id: str
) -> datetime | None:
    """When the person was last removed from there, if ever; the audit log remembers."""
    query = select(func.max(AuditRow.at)).where(
        AuditRow.chain == (tenant_id or OPERATOR),
        AuditRow.action == "member.remove",
        AuditRow.target == person_id,
    )
    found: datetime | None = await session.scalar(query)
    return found


async def require_session(session: AsyncSession, session_id: str) -> None:
    """In the operator's session. Raises UnauthorizedError for one that has been ended, which it
    cannot be any more before the transaction ends."""
    query = select(SessionRow.id).where(SessionRow.id == session_id)
    if await session.scalar(query.with_for_update(read=True)) is None:
        raise UnauthorizedError("Your session has ended. Sign in again.", code="session_over")


async def end_sessions(session: AsyncSession, person_id: str) -> None:
    """All of the person's, in the operator's session."""
    await session.execute(delete(SessionRow).where(SessionRow.person_id == person_id))


async def sweep_invitations(session: AsyncSession) -> None:
    """Forget those that ended long ago; the audit log keeps what became of them."""
    old = datetime.now(UTC) - _KEPT
    await session.execute(delete(InvitationRow).where(InvitationRow.expires_at < old))


def _of(tenant_id: str | None) -> ColumnElement[bool]:
    return MembershipRow.tenant_id.is_not_distinct_from(tenant_id)
