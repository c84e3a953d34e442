"""For whom a session asks: which of a person's tenants, or the operator. It knows what a session
belongs to, no rows."""

from __future__ import annotations

from typing import cast

from tenora_platform.errors import BadRequestError, ForbiddenError
from tenora_platform.operators.roles import Role
from tenora_platform.people.rights import MemberRole
from tenora_platform.people.sessions import SignedIn


def chosen_tenant(signed: SignedIn, wanted: str | None) -> tuple[str, MemberRole | None]:
    """The tenant, and a person's role there (None: its key asks). Raises ForbiddenError for a
    tenant that is not theirs, whether or not it exists, and where there is none; BadRequestError
    where they must say which."""
    if signed.admin_key_id is not None:
        raise ForbiddenError(
            "This session belongs to an admin key, but /v1 routes need a tenant's session.",
            code="admin_key_not_allowed",
        )
    if signed.api_key_tenant is not None:
        return signed.api_key_tenant, None
    roles = {member.tenant_id: member.role for member in signed.members if member.tenant_id}
    if wanted is not None:
        if wanted not in roles:
            raise ForbiddenError(
                "You are not a member of the tenant in x-tenora-tenant.", code="not_a_member"
            )
        return wanted, cast(MemberRole, roles[wanted])
    if not roles:
        raise ForbiddenError(
            f"You are signed in as {signed.who}, but you are not a member of any tenant. Ask a "
            "tenant's owner, or the operator of this server, for an invitation.",
            code="no_membership",
        )
    if len(roles) > 1:
        raise BadRequestError(
            "You are a member of several tenants. Name one in the header x-tenora-tenant; GET "
            "/auth/session lists them.",
            code="tenant_required",
        )
    ((tenant_id, role),) = roles.items()
    return tenant_id, cast(MemberRole, role)


def operator_role(signed: SignedIn) -> Role:
    """Raises ForbiddenError for who is none of the operator's people."""
    for member in signed.members:
        if member.tenant_id is None:
            return cast(Role, member.role)
    if signed.api_key_id is not None:
        raise ForbiddenError(
            "This session belongs to a tenant's API key, but /admin routes need an "
            "operator's session.",
            code="admin_key_required",
        )
    raise ForbiddenError(
        f"You are signed in as {signed.who}, but you are not one of the operator's people. Ask "
        "one of their owners for an invitation.",
        code="no_membership",
    )
