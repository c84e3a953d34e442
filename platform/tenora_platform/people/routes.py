"""HTTP routes of a tenant's people, its own and the operator's twins, and of the operator's own
people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import CurrentAdmin, TenantContext, require_person, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators import repository as operators
from tenora_platform.operators.roles import READERS
from tenora_platform.people.schemas import (
    InvitationCreate,
    InvitationPage,
    MemberChange,
    MemberOut,
    MemberPage,
    NewInvitation,
    OperatorChange,
    OperatorInvitationCreate,
)
from tenora_platform.people.service import MemberService
from tenora_platform.schemas import After, Deleted, Limit
from tenora_platform.state import AdminSession, AppState, State, TenantSession
from tenora_platform.tenants.repository import require_not_deleted
from tenora_platform.tenants.service import TenantService

router = APIRouter(route_class=EdgeRoute)
own = APIRouter(prefix="/v1", tags=["people"], route_class=EdgeRoute)
admin = APIRouter(prefix="/admin/v1/tenants/{tenant_id}", tags=["admin"], route_class=EdgeRoute)
operator = APIRouter(prefix="/admin/v1", tags=["admin"], route_class=EdgeRoute)

PeopleTenant = Annotated[TenantContext, Depends(require_person("people"))]
MAY_READ = [Depends(require_role(*READERS))]
MAY_WRITE = [Depends(require_role("operator"))]
OWNERS = [Depends(require_role("owner"))]


async def own_members(session: TenantSession, state: State, tenant: PeopleTenant) -> MemberService:
    return _service(session, state, tenant.tenant_id, tenant.actor)


async def tenants_members(
    tenant_id: str, session: AdminSession, state: State, admin: CurrentAdmin
) -> MemberService:
    """Raises NotFoundError for a tenant that is none."""
    await TenantService(session, audit=state.audit, actor=admin.actor).tenant(tenant_id)
    return _service(session, state, tenant_id, admin.actor)


async def operators_members(
    session: AdminSession, state: State, admin: CurrentAdmin
) -> MemberService:
    return _service(session, state, None, admin.actor)


def _service(
    session: AsyncSession, state: AppState, tenant_id: str | None, actor: str
) -> MemberService:
    async def has_owners_key() -> bool:
        await operators.lock_owners(session)
        configured = bool(state.auth.admins.configured_ids)
        return configured or await operators.has_other_owner(session, key_id="")

    return MemberService(
        session,
        tenant_id=tenant_id,
        audit=state.audit,
        secret=state.secret,
        actor=actor,
        base_url=state.settings.base_url,
        has_owner=has_owners_key if tenant_id is None else None,
    )


# Function scope, as the sessions have.
Own = Annotated[MemberService, Depends(own_members, scope="function")]
OfTenant = Annotated[MemberService, Depends(tenants_members, scope="function")]
OfOperator = Annotated[MemberService, Depends(operators_members, scope="function")]


@own.get("/people")
async def list_people(members: Own, after: After = None, limit: Limit = 20) -> MemberPage:
    """List the people of this tenant. All routes for people need a signed-in owner; API keys cannot
    use them."""
    return MemberPage.of(await members.page(after, limit), limit)


@own.patch("/people/{person_id}")
async def change_person(
    person_id: str,
    body: MemberChange,
    members: Own,
    tenant: PeopleTenant,
    session: TenantSession,
    state: State,
) -> MemberOut:
    """Change a person's role, effective with the next request. The last owner stays an owner."""
    return await _changed(state, session, await members.change(person_id, body.role))


@own.delete("/people/{person_id}")
async def remove_person(
    person_id: str, members: Own, tenant: PeopleTenant, session: TenantSession, state: State
) -> Deleted:
    """Remove a person, at once and everywhere; their requests in flight end. The last owner cannot
    be removed."""
    await members.remove(person_id)
    return await _removed(state, session, tenant.tenant_id, person_id)


@own.post("/invitations", status_code=201)
async def invite(body: InvitationCreate, members: Own) -> NewInvitation:
    """Create a link with which one person joins with this role. It is only in this answer."""
    return await members.invite(body)


@own.get("/invitations")
async def list_invitations(members: Own, after: After = None, limit: Limit = 20) -> InvitationPage:
    return InvitationPage.of(await members.invitations(after, limit), limit)


@own.delete("/invitations/{invitation_id}")
async def withdraw_invitation(invitation_id: str, members: Own) -> Deleted:
    await members.withdraw(invitation_id)
    return Deleted(id=invitation_id, object="invitation")


@admin.get("/people", dependencies=MAY_READ)
async def list_tenants_people(
    members: OfTenant, after: After = None, limit: Limit = 20
) -> MemberPage:
    return MemberPage.of(await members.page(after, limit), limit)


@admin.patch("/people/{person_id}", dependencies=MAY_WRITE)
async def change_tenants_person(
    person_id: str, body: MemberChange, members: OfTenant, session: AdminSession, state: State
) -> MemberOut:
    return await _changed(state, session, await members.change(person_id, body.role))


@admin.delete("/people/{person_id}", dependencies=MAY_WRITE)
async def remove_tenants_person(
    tenant_id: str, person_id: str, members: OfTenant, session: AdminSession, state: State
) -> Deleted:
    await members.remove(person_id)
    return await _removed(state, session, tenant_id, person_id)


@admin.post("/invitations", status_code=201, dependencies=MAY_WRITE)
async def invite_to_tenant(
    tenant_id: str, body: InvitationCreate, members: OfTenant, session: AdminSession
) -> NewInvitation:
    """As POST /v1/invitations: how a tenant gets its first owner."""
    await require_not_deleted(session, tenant_id)
    return await members.invite(body)


@admin.get("/invitations", dependencies=MAY_READ)
async def list_tenants_invitations(
    members: OfTenant, after: After = None, limit: Limit = 20
) -> InvitationPage:
    return InvitationPage.of(await members.invitations(after, limit), limit)


@admin.delete("/invitations/{invitation_id}", dependencies=MAY_WRITE)
async def withdraw_tenants_invitation(invitation_id: str, members: OfTenant) -> Deleted:
    await members.withdraw(invitation_id)
    return Deleted(id=invitation_id, object="invitation")


@operator.get("/people", dependencies=MAY_READ)
async def list_operators_people(
    members: OfOperator, after: After = None, limit: Limit = 20
) -> MemberPage:
    """List the operator's people."""
    return MemberPage.of(await members.page(after, limit), limit)


@operator.patch("/people/{person_id}", dependencies=OWNERS)
async def change_operators_person(
    person_id: str, body: OperatorChange, members: OfOperator, session: AdminSession, state: State
) -> MemberOut:
    return await _changed(state, session, await members.change(person_id, body.role))


@operator.delete("/people/{person_id}", dependencies=OWNERS)
async def remove_operators_person(
    person_id: str, members: OfOperator, session: AdminSession, state: State
) -> Deleted:
    await members.remove(person_id)
    await state.auth.commit_change(session)
    return Deleted(id=person_id, object="person")


@operator.post("/invitations", status_code=201, dependencies=OWNERS)
async def invite_operator(body: OperatorInvitationCreate, members: OfOperator) -> NewInvitation:
    """Create a link with which one person joins the operator's people."""
    return await members.invite(body)


@operator.get("/invitations", dependencies=MAY_READ)
async def list_operators_invitations(
    members: OfOperator, after: After = None, limit: Limit = 20
) -> InvitationPage:
    return InvitationPage.of(await members.invitations(after, limit), limit)


@operator.delete("/invitations/{invitation_id}", dependencies=OWNERS)
async def withdraw_operators_invitation(invitation_id: str, members: OfOperator) -> Deleted:
    await members.withdraw(invitation_id)
    return Deleted(id=invitation_id, object="invitation")


async def _changed(state: AppState, session: AsyncSession, member: MemberOut) -> MemberOut:
    await state.auth.commit_change(session)
    return member


async def _removed(
    state: AppState, session: AsyncSession, tenant_id: str, person_id: str
) -> Deleted:
    await state.auth.commit_change(session)
    await state.flights.person_removed(tenant_id, person_id)
    return Deleted(id=person_id, object="person")


router.include_router(own)
router.include_router(admin)
router.include_router(operator)
