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
        if admin.is_person:
            _require_role(connection, None, admin.key_id, admin.role)
        elif admin.key_prefix is not None:  # a configured key is good while the process runs
            columns = [getattr(AdminKeyRow, name) for name in (*_KEPT, "role")]
            row = connection.execute(select(*columns).where(AdminKeyRow.id == admin.key_id)).one()
            good_until(cast(KeptKey, row), admin.key_prefix)
            if row.role != admin.role:
                raise _other_role()

    return Asker(place=OPERATOR, require=require)


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


def _require_role(connection: Connection, tenant_id: str | None, person_id: str, role: str) -> None:
    now = connection.scalar(
        select(MembershipRow.role).where(
            MembershipRow.tenant_id.is_not_distinct_from(tenant_id),
            MembershipRow.person_id == person_id,
        )
    )
    if now is None:
        raise ForbiddenError("You are not a member any more.", code="not_a_member")
    if now != role:
        raise _other_role()


def _other_role() -> ForbiddenError:
    return ForbiddenError(
        "Your role was changed while the request was under way; send it again.",
        code="insufficient_role",
    )
