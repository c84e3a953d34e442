"""What `GET /auth/session` says of who is signed in."""

from __future__ import annotations

from typing import Literal, cast

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.contexts import SCOPES, Scope
from tenora_platform.errors import UnauthorizedError
from tenora_platform.kept_keys import good_until
from tenora_platform.operators.roles import Role
from tenora_platform.people.rights import MemberRole, role_may
from tenora_platform.people.schemas import SessionKey, SessionPerson, SessionTenant, SessionView
from tenora_platform.people.sessions import SignedIn
from tenora_platform.people.tables import PersonRow, SessionRow
from tenora_platform.state import AppState
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow


async def session_view(state: AppState, signed: SignedIn, token: str) -> SessionView:
    """Raises UnauthorizedError for a session whose key has ended."""
    async with state.db.admin_session() as session:
        row = await session.get(SessionRow, signed.id)
        if row is None:
            raise UnauthorizedError("Your session has ended. Sign in again.", code="session_over")
        kind: Literal["person", "api_key", "admin_key"] = "person"
        role: Role | None = None
        key: SessionKey | None = None
        person: SessionPerson | None = None
        tenants: list[SessionTenant] = []
        if signed.admin_key_id is not None:
            kind = "admin_key"
            admin = await state.auth.admins.of_id(session, signed.admin_key_id, signed.key_prefix)
            role = admin.role
            key = SessionKey(id=admin.key_id, name="admin key", prefix=signed.key_prefix)
        elif signed.api_key_id is not None:
            kind = "api_key"
            key, tenants = await _of_key(session, signed)
        else:
            known = await session.get_one(PersonRow, signed.person_id)
            person = SessionPerson.model_validate(known)
            role = next(
                (cast(Role, each.role) for each in signed.members if each.tenant_id is None), None
            )
            tenants = await _of_person(session, signed)
        return SessionView(
            id=row.id,
            type=kind,
            csrf_token=state.auth.sessions.csrf_token(token),
            person=person,
            key=key,
            operator_role=role,
            tenants=tenants,
            created_at=row.created_at,
            expires_at=row.expires_at,
        )


async def _of_key(
    session: AsyncSession, signed: SignedIn
) -> tuple[SessionKey, list[SessionTenant]]:
    row = await session.get_one(ApiKeyRow, signed.api_key_id)
    good_until(row, signed.key_prefix)
    tenant = await session.get_one(TenantRow, row.tenant_id)
    scopes = cast(list[Scope], row.scopes)
    return (
        SessionKey(id=row.id, name=row.name, prefix=signed.key_prefix),
        [_tenant(tenant, None, scopes, scopes)],
    )


async def _of_person(session: AsyncSession, signed: SignedIn) -> list[SessionTenant]:
    roles = {each.tenant_id: each.role for each in signed.members if each.tenant_id}
    rows = await session.scalars(
        select(TenantRow).where(TenantRow.id.in_(roles)).order_by(TenantRow.name, TenantRow.id)
    )
    found = []
    for tenant in rows:
        role = cast(MemberRole, roles[tenant.id])
        reads, scopes = (
            [scope for scope in SCOPES if role_may(role, scope, reads=each)]
            for each in (True, False)
        )
        found.append(_tenant(tenant, role, scopes, reads))
    return found


def _tenant(
    tenant: TenantRow, role: MemberRole | None, scopes: list[Scope], reads: list[Scope]
) -> SessionTenant:
    status = cast(Literal["active", "suspended"], tenant.status)
    return SessionTenant(
        id=tenant.id, name=tenant.name, status=status, role=role, scopes=scopes, reads=reads
    )
