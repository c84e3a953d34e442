"""In whose name an evaluation asks: its tenant's, under the key that wanted it; and the platform's,
for what a crash of the platform has cut off. Reads rows; asks nobody."""

from __future__ import annotations

from typing import cast

from sqlalchemy import select

from tenora_platform.auth import Caps, TenantContext, plan_terms, tenant_namespace
from tenora_platform.errors import ForbiddenError, UnauthorizedError
from tenora_platform.kept_keys import has_passed
from tenora_platform.people.repository import get_member
from tenora_platform.people.rights import MemberRole, role_may
from tenora_platform.people.tables import MembershipRow, PersonRow
from tenora_platform.probing.tenant import probing_tenant
from tenora_platform.state import AppState
from tenora_platform.tenants.key_families import parents_of
from tenora_platform.tenants.tables import ApiKeyRow, PlanRow, TenantRow

LOWEST_FIRST = ("flex", "default", "priority")


async def tenant_of(state: AppState, tenant_id: str, key_id: str) -> TenantContext:
    """The tenant as plan and key are now, so that limits, budgets and suspension hold; `key_id` ""
    is nobody's, of the platform. Raises ForbiddenError, UnauthorizedError."""
    async with state.db.admin_session() as session:
        found = await session.execute(
            select(TenantRow, PlanRow)
            .join(PlanRow, PlanRow.name == TenantRow.plan)
            .where(TenantRow.id == tenant_id)
        )
        tenant, plan = found.one()
        key = await session.scalar(
            select(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.tenant_id == tenant_id)
        )
        parents = () if key is None else await parents_of(session, key)
        person = await get_member(session, tenant_id, key_id) if key is None and key_id else None
    if tenant.status != "active":
        raise ForbiddenError("This tenant is suspended.", code="tenant_suspended")
    if key is not None and (key.revoked_at is not None or has_passed(key.expires_at)):
        raise UnauthorizedError("The API key that created this evaluation is no longer valid.")
    if key is None and key_id and not _may_ask(person):
        raise ForbiddenError(
            "The person who created this evaluation may no longer do so.", code="not_a_member"
        )
    return TenantContext(
        tenant_id=tenant.id,
        name=tenant.name,
        plan=plan_terms(plan),
        key_id=key_id,
        key_prefix="" if key is None else key.prefix,
        scopes=("inference",),
        key_caps=Caps() if key is None else Caps(**key.limits),
        parents=parents,
        key_models=None,  # was asked when it was made
        prepaid=tenant.prepaid,
        namespace=tenant_namespace(state.secret, tenant.id, tenant.trust_group),
    )


def _may_ask(found: tuple[MembershipRow, PersonRow] | None) -> bool:
    return found is not None and role_may(cast(MemberRole, found[0].role), "adapters", reads=False)


async def platform(state: AppState) -> TenantContext:
    """The tenant that probes are asked for."""
    return await tenant_of(state, (await probing_tenant(state)).key, "")


def lowest_class(tenant: TenantContext) -> str:
    return next(each for each in LOWEST_FIRST if each in tenant.plan.tiers)
