"""What can be done to who belongs where: to a tenant, or to the operator's people. Each change is
audited in its own transaction. Who may do it is the routes' matter, as is forgetting what was
remembered of them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
)
from tenora_platform.ids import new_id
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.people import repository
from tenora_platform.people.authority import may_still, withdraw
from tenora_platform.people.schemas import (
    Invitation,
    InvitationCreate,
    Invited,
    Joined,
    MemberOut,
    NewInvitation,
    OperatorInvitationCreate,
)
from tenora_platform.people.sessions import SignedIn
from tenora_platform.people.tables import InvitationRow, MembershipRow, PersonRow
from tenora_platform.secret import ServerSecret
from tenora_platform.tenants.tables import TenantRow


class MemberService:
    """Of one tenant, or (`tenant_id` None) of the operator's people, of whom `has_owner` says
    whether a key of an owner's would be left without them. Works inside one session, the operator's
    where it takes something from a person; commits nothing itself."""

    def __init__(
        self,
        session: AsyncSession,
        *,
        tenant_id: str | None,
        audit: AuditLog,
        secret: ServerSecret,
        actor: str,
        key_prefix: str | None,
        base_url: str,
        keys: AdminKeys,
        has_owner: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._session = session
        self._tenant_id = tenant_id
        self._audit = audit
        self._secret = secret
        self._actor = actor
        self._key_prefix = key_prefix  # of the admin key's secret, if one asks
        self._base_url = base_url
        self._keys = keys
        self._has_owner = has_owner

    async def page(self, after: str | None, limit: int) -> list[MemberOut]:
        """Newest first; one more than `limit`."""
        rows = await repository.list_members(
            self._session, self._tenant_id, after=after, limit=limit
        )
        return [_member(member, person) for member, person in rows]

    async def change(self, person_id: str, role: str) -> MemberOut:
        """Withdraws the open invitations that the person may not make any more. Raises
        NotFoundError; ConflictError for the last owner."""
        await repository.lock_members(self._session, self._tenant_id)
        member, person = await self._row(person_id)
        if member.role == role:
            return _member(member, person)
        await self._keep_an_owner(member)
        before = _told(member, person)
        member.role = role
        await self._session.flush()
        await self._note("member.update", person_id, before, _told(member, person))
        await self._withdraw_of(person_id)
        return _member(member, person)

    async def remove(self, person_id: str) -> None:
        """Withdraws the open invitations that they made. Their sessions end, unless they belong
        elsewhere, too; those do not count here any more, whoever invites them again. Raises
        NotFoundError; ConflictError for the last owner."""
        await repository.lock_members(self._session, self._tenant_id)
        member, person = await self._row(person_id)
        await self._keep_an_owner(member)
        before = _told(member, person)
        await self._session.delete(member)
        await self._session.flush()
        await self._note("member.remove", person_id, before, None)
        await self._withdraw_of(person_id)
        if not await repository.memberships_of(self._session, person_id):
            await repository.end_sessions(self._session, person_id)

    async def end_sessions(self, person_id: str) -> None:
        """The person's; of one who belongs elsewhere, too, they only do not count here any more: a
        tenant signs nobody out of another. Raises NotFoundError."""
        await repository.lock_members(self._session, self._tenant_id)
        member, _ = await self._row(person_id)
        member.sessions_from = datetime.now(UTC)
        if len(await repository.memberships_of(self._session, person_id)) == 1:
            await repository.end_sessions(self._session, person_id)
        await self._note("member.sign_out", person_id, None, None)

    async def invitations(self, after: str | None, limit: int) -> list[Invitation]:
        """Newest first, those that are over included; one more than `limit`."""
        rows = await repository.list_invitations(
            self._session, self._tenant_id, after=after, limit=limit
        )
        return [Invitation(**_fields(row)) for row in rows]

    async def invite(self, body: InvitationCreate | OperatorInvitationCreate) -> NewInvitation:
        """The link's token is after a `#`, which browsers send to nobody: it is in no log."""
        token = secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        row = InvitationRow(
            id=new_id("invitation"),
            tenant_id=self._tenant_id,
            hash=hash_of(self._secret, token),
            role=body.role,
            email=body.email,
            created_by=self._actor,
            key_prefix=self._key_prefix,
            created_at=now,
            expires_at=now + timedelta(seconds=body.expires_in_s),
        )
        self._session.add(row)
        await self._session.flush()
        after = {"role": row.role, "email": row.email, "expires_at": row.expires_at}
        await self._note("invitation.create", row.id, None, after)
        return NewInvitation(**_fields(row), link=f"{self._base_url}/invitation#{token}")

    async def withdraw(self, invitation_id: str) -> None:
        """Raises NotFoundError; ConflictError for one that was used."""
        row = await repository.get_invitation(self._session, self._tenant_id, invitation_id)
        if row is None:
            raise NotFoundError(f"There is no invitation {invitation_id!r}.")
        if row.used_at is not None:
            raise ConflictError(
                "This invitation has already been accepted; remove the person instead.",
                code="invitation_used",
            )
        await self._session.delete(row)
        await self._session.flush()
        before = {"role": row.role, "email": row.email}
        await self._note("invitation.withdraw", row.id, before, None)

    async def _withdraw_of(self, person_id: str) -> None:
        makers = [f"person:{person_id}"]
        await withdraw(
            self._session,
            self._audit,
            self._keys,
            makers,
            tenant_id=self._tenant_id,
            actor=self._actor,
        )

    async def _row(self, person_id: str) -> tuple[MembershipRow, PersonRow]:
        found = await repository.get_member(self._session, self._tenant_id, person_id)
        if found is None:
            raise NotFoundError(f"There is no person {person_id!r}.")
        return found

    async def _keep_an_owner(self, member: MembershipRow) -> None:
        if member.role != "owner":
            return
        others = await repository.has_other_owner(self._session, self._tenant_id, member.person_id)
        if not others and not (self._has_owner and await self._has_owner()):
            raise ConflictError(
                "This is the last owner. Make somebody else an owner first.", code="last_owner"
            )

    async def _note(
        self, action: str, target: str, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        await self._audit.append(
            self._session,
            actor=self._actor,
            action=action,
            target=target,
            tenant_id=self._tenant_id,
            before=before,
            after=after,
        )


async def invited(session: AsyncSession, secret: ServerSecret, token: str) -> Invited:
    """What an invitation offers, in the operator's session. Raises BadRequestError for a link that
    is not, or not any more, good."""
    row = await _open_invitation(session, secret, token)
    tenant = None if row.tenant_id is None else await session.get_one(TenantRow, row.tenant_id)
    return Invited.model_validate(
        {
            "tenant_name": None if tenant is None else tenant.name,
            "role": row.role,
            "expires_at": row.expires_at,
        }
    )


async def _open_invitation(
    session: AsyncSession, secret: ServerSecret, token: str, *, lock: bool = False
) -> InvitationRow:
    row = await repository.invitation_of_hash(session, hash_of(secret, token), lock=lock)
    if row is None or row.used_at is not None or row.expires_at <= datetime.now(UTC):
        raise _over()
    return row


def _over() -> BadRequestError:
    return BadRequestError(
        "This invitation has been used or withdrawn, or has expired. Ask for a new one.",
        code="invitation_over",
        param="token",
    )


async def accept(
    session: AsyncSession,
    audit: AuditLog,
    keys: AdminKeys,
    secret: ServerSecret,
    asker: SignedIn,
    token: str,
) -> Joined:
    """The person joins, in the operator's session. Raises BadRequestError for a link that is not,
    or not any more, good, because of who made it, too; ForbiddenError for one that is somebody
    else's, UnauthorizedError for a session from before the person was removed there; ConflictError
    for who belongs there already."""
    person_id = str(asker.person_id)
    row = await _open_invitation(session, secret, token)
    await repository.lock_members(session, row.tenant_id)  # two at once are one after the other
    row = await _open_invitation(session, secret, token, lock=True)
    await repository.require_session(session, asker.id)
    person = await session.get_one(PersonRow, person_id)
    removed_at = await repository.last_removal(session, row.tenant_id, person_id)
    is_older = removed_at is not None and row.created_at <= removed_at
    if is_older or not await may_still(session, keys, row):
        raise _over()
    if removed_at is not None and asker.began_at <= removed_at:
        raise UnauthorizedError("Sign in again to accept this invitation.", code="session_over")
    if row.email is not None and not _is_email(person, row.email):
        raise ForbiddenError(
            "This invitation is for another email address than the one you signed in with.",
            code="invitation_for_another",
        )
    if await repository.get_member(session, row.tenant_id, person_id) is not None:
        raise ConflictError(
            "You are already a member. An owner can change your role.", code="already_member"
        )
    row.used_at, row.used_by = datetime.now(UTC), person_id
    await join(session, audit, person, row.tenant_id, row.role, invitation=row.id)
    return Joined.model_validate({"tenant_id": row.tenant_id, "role": row.role})


async def make_owner(
    session: AsyncSession, audit: AuditLog, person: PersonRow, owner_email: str | None
) -> None:
    """Whoever the server is set up with as owner belongs to the operator's people."""
    if owner_email is None or not _is_email(person, owner_email):
        return
    await repository.lock_members(session, None)
    if await repository.get_member(session, None, person.id) is None:
        await join(session, audit, person, None, "owner", invitation=None)


async def join(
    session: AsyncSession,
    audit: AuditLog,
    person: PersonRow,
    tenant_id: str | None,
    role: str,
    *,
    invitation: str | None,
) -> None:
    member = MembershipRow(
        id=new_id("member"),
        tenant_id=tenant_id,
        person_id=person.id,
        role=role,
        sessions_from=await repository.last_removal(session, tenant_id, person.id),
    )
    session.add(member)
    await session.flush()
    await audit.append(
        session,
        actor=f"person:{person.id}",
        action="member.join",
        target=person.id,
        tenant_id=tenant_id,
        after=_told(member, person),
        details={"invitation": invitation},
    )


def hash_of(secret: ServerSecret, token: str) -> str:
    return secret.mac("invitation", token)


_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def _is_email(person: PersonRow, email: str) -> bool:
    """Whether it is the person's verified address, but for the case of ASCII letters: folding
    others makes two addresses one (`ß` and `ss`)."""
    if not person.email_verified or person.email is None:
        return False
    return person.email.translate(_ASCII_LOWER) == email.translate(_ASCII_LOWER)


def _member(member: MembershipRow, person: PersonRow) -> MemberOut:
    return MemberOut.model_validate(
        {
            "id": person.id,
            "email": person.email,
            "email_verified": person.email_verified,
            "name": person.name,
            "role": member.role,
            "joined_at": member.created_at,
            "signed_in_at": person.signed_in_at,
        }
    )


def _told(member: MembershipRow, person: PersonRow) -> dict[str, Any]:
    told = {"person_id": person.id, "email": person.email, "role": member.role}
    return told if person.email_verified else told | {"email_verified": False}


def _fields(row: InvitationRow) -> dict[str, Any]:
    over = "expired" if row.expires_at <= datetime.now(UTC) else "open"
    names = ("id", "role", "email", "created_by", "created_at", "expires_at", "used_at", "used_by")
    return {name: getattr(row, name) for name in names} | {
        "state": over if row.used_at is None else "used"
    }
