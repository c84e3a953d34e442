"""People, invitations and sessions over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from tenora_platform.contexts import Scope
from tenora_platform.operators.roles import Role
from tenora_platform.people.rights import MemberRole
from tenora_platform.plain_text import EMAIL
from tenora_platform.schemas import Body, IdItem, Item, ListPage
from tenora_platform.times import DAY_S

Email = Annotated[str, StringConstraints(max_length=320, strip_whitespace=True, pattern=EMAIL)]
Token = Annotated[str, StringConstraints(max_length=200)]
Lasts = Annotated[int, Field(ge=60, le=30 * DAY_S)]


class KeySignIn(Body):
    key: Annotated[str, StringConstraints(max_length=1000)]


class InvitationToken(Body):
    token: Token


class MemberChange(Body):
    role: MemberRole


class OperatorChange(Body):
    role: Role


class _InvitationBody(Body):
    """With `email`, only a person who signs in with that verified address can accept; without it,
    anybody who has the link."""

    email: Email | None = None
    expires_in_s: Lasts = 7 * DAY_S


class InvitationCreate(_InvitationBody):
    role: MemberRole


class OperatorInvitationCreate(_InvitationBody):
    role: Role


class MemberOut(IdItem):
    """A person who is a member of the tenant, or one of the operator's people. `id` is the
    person's."""

    object: Literal["person"] = "person"
    email: str | None
    email_verified: bool
    name: str | None
    role: MemberRole | Role
    joined_at: datetime
    signed_in_at: datetime


class MemberPage(ListPage[MemberOut]):
    pass


class Invitation(IdItem):
    object: Literal["invitation"] = "invitation"
    role: MemberRole | Role
    email: str | None
    state: Literal["open", "used", "expired"]
    created_by: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    used_by: str | None


class InvitationPage(ListPage[Invitation]):
    pass


class NewInvitation(Invitation):
    """The link is only in this answer; who opens it and signs in becomes a member."""

    link: str


class Invited(Item):
    """`tenant_name` null: among the operator's people."""

    object: Literal["invitation.offer"] = "invitation.offer"
    tenant_name: str | None
    role: MemberRole | Role
    expires_at: datetime


class Joined(Item):
    object: Literal["membership"] = "membership"
    tenant_id: str | None
    role: MemberRole | Role


class SessionPerson(Item):
    id: str
    email: str | None
    email_verified: bool
    name: str | None


class SessionKey(Item):
    id: str
    name: str
    prefix: str | None


class SessionTenant(Item):
    """`role` is null for a session of a key. `reads` lists what may be read, `scopes` what may be
    changed and used."""

    id: str
    name: str
    status: Literal["active", "suspended"]
    role: MemberRole | None
    scopes: list[Scope]
    reads: list[Scope]


class SessionView(Item):
    """Who is signed in, and with which role. Send `csrf_token` in the header x-csrf-token of every
    request except GET; `x-tenora-tenant` selects the tenant if there are several."""

    object: Literal["session"] = "session"
    id: str
    type: Literal["person", "api_key", "admin_key"]
    csrf_token: str
    person: SessionPerson | None
    key: SessionKey | None
    operator_role: Role | None
    tenants: list[SessionTenant]
    created_at: datetime
    expires_at: datetime


class SessionItem(IdItem):
    object: Literal["session"] = "session"
    current: bool
    address: str | None
    user_agent: str | None
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime


class SessionList(Item):
    object: Literal["list"] = "list"
    data: list[SessionItem]


class SignedOut(Item):
    """`provider_url` is where to end the provider's own session."""

    object: Literal["signed_out"] = "signed_out"
    provider_url: str | None


class SignInMethods(Item):
    object: Literal["sign_in_methods"] = "sign_in_methods"
    oidc: str | None  # what the provider is called
