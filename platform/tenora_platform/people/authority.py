"""Whether who made an invitation may still make it: asked when it is accepted, and when its maker
loses a role or a key. It knows rights, not how an invitation is sent or accepted."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import UnauthorizedError
from tenora_platform.operators.keys import AdminKeys
from tenora_platform.people import repository
from tenora_platform.people.tables import InvitationRow

INVITES: dict[bool, frozenset[str]] = {
    True: frozenset({"owner"}),  # the operator's own people
    False: frozenset({"owner", "operator"}),  # a tenant's
}
"""The operator's roles that may invite."""
INVITES_OWN = frozenset({"owner"})
"""The tenant's roles that may invite to it."""


async def may_still(session: AsyncSession, keys: AdminKeys, row: InvitationRow) -> bool:
    """In the operator's session. An admin key by the secret that asked; a person by what they have
    belonged to since before they made it, for a role that came later is another grant."""
    kind, _, maker = row.created_by.partition(":")
    operators = INVITES[row.tenant_id is None]
    if kind == "admin_key":
        try:
            return (await keys.still(session, maker, row.key_prefix)).role in operators
        except UnauthorizedError:
            return False
    for member in await repository.memberships_of(session, maker):
        may = operators if member.tenant_id is None else INVITES_OWN
        is_there = member.tenant_id in (None, row.tenant_id)
        if is_there and member.role in may and member.created_at <= row.created_at:
            return True
    return False


async def withdraw(
    session: AsyncSession,
    audit: AuditLog,
    keys: AdminKeys,
    makers: Iterable[str],
    *,
    tenant_id: str | None,
    actor: str,
) -> None:
    """The open invitations of these makers (`person:...`, `admin_key:...`) that they may not make
    any more, in the operator's session: to this tenant, or (None) to all and to the operator's
    people, for theirs is what the makers have lost. Audit logs are locked in the order of
    tenants."""
    for row in await repository.open_invitations_of(session, makers, tenant_id):
        if not await may_still(session, keys, row):
            await session.delete(row)
            await session.flush()
            await audit.append(
                session,
                actor=actor,
                action="invitation.withdraw",
                target=row.id,
                tenant_id=row.tenant_id,
                before={"role": row.role, "email": row.email},
                details={"maker": row.created_by},
            )
