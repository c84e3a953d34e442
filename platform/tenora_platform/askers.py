"""What a transaction asks of who sent its request (`asking`): whether the key, or the person's
role, is still what the request was let in by."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, select

from tenora_platform.asking import OPERATOR, Asker
from tenora_platform.contexts import TenantContext
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.kept_keys import KeptKey, good_until, has_passed
from tenora_platform.operators.roles import AdminContext
from tenora_platform.operators.tables import AdminKeyRow
from tenora_platform.people.tables import MembershipRow
from tenora_platform.tenants.tables import ApiKeyRow, TenantRow

_KEPT = ("prefix", "previous_prefix", "previous_expires_at", "expires_at", "revoked_at")


def asker_of_tenant(tenant: TenantContext) -> Asker:
    def require(connection: Connection) -> None:
        status = select(TenantRow.status).where(TenantRow.id == tenant.tenant_id)
        if connection.scalar(status) != "active":
            raise ForbiddenError(
                "This tenant is suspended. Ask the operator of this server.",
                code="tenant_suspended",
            )
        if tenant.role is None:
            _require_api_key(connection, tenant)
        else:
            _require_role(connection, tenant.tenant_id, tenant.key_id, tenant.role)

    return Asker(place=tenant.tenant_id, require=require)


def asker_of_admin(admin: AdminContext) -> Asker:
    def require(connection: Connection) -> None:
        if operators_role(connection, admin.actor, admin.key_prefix) != admin.role:
            raise _other_role()

    return Asker(place=OPERATOR, require=require)


def operators_role(connection: Connection, actor: str, key_prefix: str | None) -> str:
    """The role by now of who asked, as the audit log names them, by a secret of that prefix. A
    configured key, which has none, is good while the process runs. Raises UnauthorizedError and
    ForbiddenError where the key or the membership has ended."""
    kind, _, id_ = actor.partition(":")
    if kind == "person":
        return _role_of(connection, None, id_)
    if key_prefix is None:
        return "owner"
    columns = [getattr(AdminKeyRow, name) for name in (*_KEPT, "role")]
    row = connection.execute(select(*columns).where(AdminKeyRow.id == id_)).one_or_none()
    if row is None:
        raise UnauthorizedError("Invalid API key.")
    good_until(cast(KeptKey, row), key_prefix)
    return str(row.role)


def _require_api_key(connection: Connection, tenant: TenantContext) -> None:
    columns = [getattr(ApiKeyRow, name) for name in (*_KEPT, "scopes", "lineage")]
    row = connection.execute(select(*columns).where(ApiKeyRow.id == tenant.key_id)).one()
    good_until(cast(KeptKey, row), tenant.key_prefix)
    ends = select(ApiKeyRow.revoked_at, ApiKeyRow.expires_at).where(ApiKeyRow.id.in_(row.lineage))
    parents = connection.execute(ends).all() if row.lineage else []
    if any(each.revoked_at is not None or has_passed(each.expires_at) for each in parents):
        raise UnauthorizedError(
            "This API key ended with the key that created it; use another key.", code="key_revoked"
        )
    if not set(tenant.scopes) <= set(row.scopes):
        raise ForbiddenError(
            "This API key lost a scope while the request was under way; send it again.",
            code="insufficient_scope",
        )


def _require_role(connection: Connection, tenant_id: str, person_id: str, role: str) -> None:
    if _role_of(connection, tenant_id, person_id) != role:
        raise _other_role()


def _role_of(connection: Connection, tenant_id: str | None, person_id: str) -> str:
    role = connection.scalar(
        select(MembershipRow.role).where(
            MembershipRow.tenant_id.is_not_distinct_from(tenant_id),
            MembershipRow.person_id == person_id,
        )
    )
    if role is None:
        raise ForbiddenError("You are not a member any more.", code="not_a_member")
    return str(role)


def _other_role() -> ForbiddenError:
    return ForbiddenError(
        "Your role was changed while the request was under way; send it again.",
        code="insufficient_role",
    )
