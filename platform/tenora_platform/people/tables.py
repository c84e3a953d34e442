"""Rows of people, of what they belong to, of invitations and of sessions. Sessions and people are
the operator's to read; a tenant's session sees its own members."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, SQLColumnExpression, Text, case, func, or_
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class PersonRow(Base):
    """Somebody as the provider knows them: `issuer` and `subject` are who it is, `email` and `name`
    what was said at the last sign-in."""

    __tablename__ = "people"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    issuer: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    email: Mapped[str | None] = mapped_column(Text)
    email_verified: Mapped[bool]
    name: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    signed_in_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())

    @property
    def shown_name(self) -> str:
        """The email, marked where the provider has not verified it, else the name, marked where it
        could be read as an address, else the id."""
        if self.email:
            return self.email if self.email_verified else self.email + UNVERIFIED
        if self.name and any(sign in self.name for sign in _AT_SIGNS):
            return self.name + UNVERIFIED
        return self.name or self.id


UNVERIFIED = " (unverified)"
"""Behind an email that anybody may claim."""
_AT_SIGNS = "@\ufe6b\uff20"  # the small and the full-width one


def shown_name() -> SQLColumnExpression[str | None]:
    """The same in a query, but null instead of the id."""
    email = case((PersonRow.email_verified, PersonRow.email), else_=PersonRow.email + UNVERIFIED)
    is_like_email = or_(*(PersonRow.name.contains(sign) for sign in _AT_SIGNS))
    name = case((is_like_email, PersonRow.name + UNVERIFIED), else_=PersonRow.name)
    return func.coalesce(func.nullif(email, ""), name)


class MembershipRow(Base):
    """What a person may do at a tenant, or (tenant NULL) as one of the operator's people."""

    __tablename__ = "memberships"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(Text, ForeignKey("tenants.id"))
    person_id: Mapped[str] = mapped_column(Text, ForeignKey("people.id"))
    role: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    sessions_from: Mapped[datetime | None] = mapped_column(_Time)  # older ones do not count here


class InvitationRow(Base):
    """A link by which one person may join; of its token only the HMAC is kept."""

    __tablename__ = "invitations"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(Text, ForeignKey("tenants.id"))
    hash: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    email: Mapped[str | None] = mapped_column(Text)  # NULL: whoever has the link
    created_by: Mapped[str] = mapped_column(Text)  # as the audit log names who asks
    key_prefix: Mapped[str | None] = mapped_column(Text)  # of the admin key's secret, if one asked
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(_Time)
    used_at: Mapped[datetime | None] = mapped_column(_Time)
    used_by: Mapped[str | None] = mapped_column(Text, ForeignKey("people.id"))


class SessionRow(Base):
    """Somebody who is signed in: a person, or who showed a key. `key_prefix` is that of the secret
    that was shown; a session ends with it."""

    __tablename__ = "sessions"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    hash: Mapped[str] = mapped_column(Text, unique=True)
    person_id: Mapped[str | None] = mapped_column(Text, ForeignKey("people.id"))
    api_key_id: Mapped[str | None] = mapped_column(Text, ForeignKey("api_keys.id"))
    admin_key_id: Mapped[str | None] = mapped_column(Text)  # may be a configured one
    key_prefix: Mapped[str | None] = mapped_column(Text)
    address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    last_used_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(_Time)
