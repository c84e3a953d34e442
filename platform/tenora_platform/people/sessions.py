"""Sessions: who is signed in, by an opaque random id in a cookie of which the database keeps the
HMAC. It knows whose a session is and for how long it is good, not what they may do."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database, is_read_only
from tenora_platform.errors import UnauthorizedError
from tenora_platform.ids import new_id
from tenora_platform.locks import lock
from tenora_platform.people.tables import MembershipRow, PersonRow, SessionRow
from tenora_platform.secret import ServerSecret
from tenora_platform.tenants.tables import ApiKeyRow

COOKIE = "tenora_session"
SECURE_COOKIE = "__Host-tenora_session"
"""The name under https: a browser takes it from this host alone, never from a subdomain's page."""
OPEN_MAX = 50
"""Sessions of one key or person that are open at once; a new one ends the oldest."""
_TOKEN_LENGTH = 43  # of 32 random bytes
_USE_NOTED_EVERY = timedelta(seconds=60)
_USER_AGENT_MAX = 300


@dataclass(frozen=True, slots=True)
class Origin:
    """From where somebody signs in."""

    address: str | None
    user_agent: str | None


class Member(msgspec.Struct, frozen=True):
    """What a person may do at a tenant; None: as one of the operator's people."""

    tenant_id: str | None
    role: str


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is good now: a person's with what they belong to, or that of a key."""

    id: str
    person_id: str | None
    who: str | None  # the person, in words
    members: tuple[Member, ...] = ()
    api_key_id: str | None
    api_key_tenant: str | None
    admin_key_id: str | None
    key_prefix: str | None  # of the secret it was begun with
    began_at: datetime
    good_until: datetime

    @property
    def actor(self) -> str:
        """As the audit log names who asks."""
        if self.person_id is not None:
            return f"person:{self.person_id}"
        kind = "api_key" if self.api_key_id is not None else "admin_key"
        return f"{kind}:{self.api_key_id or self.admin_key_id}"

    @property
    def chains(self) -> set[str | None]:
        """The tenants whose audit logs tell of it; None: the operator's."""
        if self.api_key_tenant is not None:
            return {self.api_key_tenant}
        return {member.tenant_id for member in self.members}


@dataclass(frozen=True, slots=True)
class Begun:
    """A new session."""

    token: str
    session_id: str
    ended: list[str]
    """Hashes of the sessions that ended for it."""


class Sessions:
    """They end when unused for `idle_s`, after `max_s` in any case, and when their row is gone."""

    def __init__(self, db: Database, secret: ServerSecret, *, idle_s: float, max_s: float) -> None:
        self._db = db
        self._secret = secret
        self._idle = timedelta(seconds=idle_s)
        self._max = timedelta(seconds=max_s)

    def hash_of(self, token: str) -> str:
        return self._secret.mac("session", token)

    def csrf_token(self, token: str) -> str:
        """What a page sends beside the cookie: only who could read an answer of ours knows it. It
        is the session's own, so that it needs no place of its own."""
        return self._secret.mac("csrf", token)

    def is_csrf_token(self, token: str, given: str) -> bool:
        return hmac.compare_digest(self.csrf_token(token).encode(), given.encode())

    async def begin(
        self,
        session: AsyncSession,
        origin: Origin,
        *,
        person_id: str | None = None,
        api_key_id: str | None = None,
        admin_key_id: str | None = None,
        key_prefix: str | None = None,
    ) -> Begun:
        """Begin a session, always with a new token: what a browser brought was perhaps put there by
        somebody else. The oldest ones beyond OPEN_MAX end."""
        token = secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        # Two at once would each count the other's out, or end the same ones in another order.
        await lock(session, f"sessions:{person_id or api_key_id or admin_key_id}")
        whose = _of(person_id, api_key_id, admin_key_id)
        oldest = select(SessionRow.id).where(*whose).order_by(SessionRow.id.desc())
        ended = await session.scalars(
            delete(SessionRow)
            .where(SessionRow.id.in_(oldest.offset(OPEN_MAX - 1)))
            .returning(SessionRow.hash)
        )
        row = SessionRow(
            id=new_id("session"),
            hash=self.hash_of(token),
            person_id=person_id,
            api_key_id=api_key_id,
            admin_key_id=admin_key_id,
            key_prefix=key_prefix,
            address=origin.address,
            user_agent=(origin.user_agent or "")[:_USER_AGENT_MAX] or None,
            created_at=now,
            last_used_at=now,
            expires_at=now + self._max,
        )
        session.add(row)
        await session.flush()
        return Begun(token, row.id, list(ended))

    async def find(self, token: str, *, is_use: bool = True) -> SignedIn:
        """The session, which stays open when it is used. Raises UnauthorizedError for one that is
        over or never was."""
        if len(token) != _TOKEN_LENGTH:
            raise _over()
        async with self._db.admin_session() as session:
            found = await session.execute(
                select(SessionRow, ApiKeyRow.tenant_id, PersonRow)
                .outerjoin(ApiKeyRow, ApiKeyRow.id == SessionRow.api_key_id)
                .outerjoin(PersonRow, PersonRow.id == SessionRow.person_id)
                .where(SessionRow.hash == self.hash_of(token))
            )
            first = found.first()
            if first is None:
                raise _over()
            row, key_tenant, person = first
            now, good_until = datetime.now(UTC), self._good_until(row)
            if good_until <= now:
                raise _over()
            is_due = is_use and row.last_used_at < now - _USE_NOTED_EVERY
            if is_due and not await is_read_only(session):
                await session.execute(
                    update(SessionRow).where(SessionRow.id == row.id).values(last_used_at=now)
                )
            return SignedIn(
                id=row.id,
                person_id=row.person_id,
                who=None if person is None else person.shown_name,
                members=await _members(session, row),
                api_key_id=row.api_key_id,
                api_key_tenant=key_tenant,
                admin_key_id=row.admin_key_id,
                key_prefix=row.key_prefix,
                began_at=row.created_at,
                good_until=good_until,
            )

    async def list_own(self, session: AsyncSession, signed: SignedIn) -> list[SessionRow]:
        """Those that are good, of the same person or key, newest first."""
        rows = await session.scalars(
            select(SessionRow).where(*_same_whose(signed)).order_by(SessionRow.id.desc())
        )
        now = datetime.now(UTC)
        return [row for row in rows if self._good_until(row) > now]

    async def end(self, session: AsyncSession, signed: SignedIn, session_id: str) -> list[str]:
        """End a session of the same person or key. Returns its hash, or nothing where there is no
        such session."""
        which = (SessionRow.id == session_id, *_same_whose(signed))
        return await _end(session, *which)

    async def end_token(self, session: AsyncSession, token: str) -> list[str]:
        """End the session of this token. Returns its hash, or nothing where there is none."""
        return await _end(session, SessionRow.hash == self.hash_of(token))

    async def sweep(self, session: AsyncSession) -> None:
        """Forget those that are over."""
        now = datetime.now(UTC)
        over = (SessionRow.expires_at < now) | (SessionRow.last_used_at < now - self._idle)
        await session.execute(delete(SessionRow).where(over))

    def _good_until(self, row: SessionRow) -> datetime:
        return min(row.expires_at, row.last_used_at + self._idle)


async def _members(session: AsyncSession, row: SessionRow) -> tuple[Member, ...]:
    """Where the session counts. Raises UnauthorizedError where the person belongs somewhere, but
    the session counts nowhere any more."""
    if row.person_id is None:
        return ()
    found = await session.execute(
        select(MembershipRow.tenant_id, MembershipRow.role, MembershipRow.sessions_from)
        .where(MembershipRow.person_id == row.person_id)
        .order_by(MembershipRow.id)
    )
    every = list(found)
    members = tuple(
        Member(tenant_id, role)
        for tenant_id, role, since in every
        if since is None or since < row.created_at
    )
    if every and not members:
        raise _over()
    return members


async def _end(session: AsyncSession, *which: ColumnElement[bool]) -> list[str]:
    ended = await session.scalars(delete(SessionRow).where(*which).returning(SessionRow.hash))
    return list(ended)


def _same_whose(signed: SignedIn) -> tuple[ColumnElement[bool], ...]:
    """Of one person; or of one secret of a key: who has another of its secrets is somebody else."""
    return (
        SessionRow.key_prefix.is_not_distinct_from(signed.key_prefix),
        *_of(signed.person_id, signed.api_key_id, signed.admin_key_id),
    )


def _of(
    person_id: str | None, api_key_id: str | None, admin_key_id: str | None
) -> tuple[ColumnElement[bool], ...]:
    return (
        SessionRow.person_id.is_not_distinct_from(person_id),
        SessionRow.api_key_id.is_not_distinct_from(api_key_id),
        SessionRow.admin_key_id.is_not_distinct_from(admin_key_id),
    )


def _over() -> UnauthorizedError:
    return UnauthorizedError("Your session has ended. Sign in again.", code="session_over")
