"""HTTP routes of a tenant's people, its own and the operator's twins, and of the operator's own
people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import (
    SCOPES,
    CurrentAdmin,
    TenantContext,
    require_person,
    require_role,
)
from tenora_platform.edge import EdgeRoute
from tenora_platform.operators import repository as operators
from tenora_platform.operators.roles import READERS
from tenora_platform.operators.routes import Service as AdminKeys
from tenora_platform.people.made_by import end_made_by
from tenora_platform.people.rights import MemberRole, role_may
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
from tenora_platform.tenants.key_service import ApiKeyService
from tenora_platform.tenants.repository import require_not_deleted
from tenora_platform.tenants.service import TenantService
from tenora_platform.webhooks.service import disable_made_by

router = APIRouter(route_class=EdgeRoute)
own = APIRouter(prefix="/v1", tags=["people"], route_class=EdgeRoute)
admin = APIRouter(prefix="/admin/v1/tenants/{tenant_id}", tags=["admin"], route_class=EdgeRoute)
operator = APIRouter(prefix="/admin/v1", tags=["admin"], route_class=EdgeRoute)

PeopleTenant = Annotated[TenantContext, Depends(require_person("people"))]
MAY_READ = [Depends(require_role(*READERS))]
MAY_WRITE = [Depends(require_role("operator"))]
OWNERS = [Depends(require_role("owner"))]
RevokeKeys = Annotated[
    bool,
    Query(description="Whether to revoke the keys, and to disable the webhooks, that they created"),
]


async def own_members(session: TenantSession, state: State, tenant: PeopleTenant) -> MemberService:
    return _service(session, state, tenant.tenant_id, tenant.actor)


async def operators_session(state: State, tenant: PeopleTenant) -> AsyncIterator[AsyncSession]:
    """What is taken from a person reaches into sessions and other places, which no tenant sees."""
    async with state.db.admin_session() as session:
        yield session


WideSession = Annotated[AsyncSession, Depends(operators_session, scope="function")]


async def own_members_widely(
    session: WideSession, state: State, tenant: PeopleTenant
) -> MemberService:
    return _service(session, state, tenant.tenant_id, tenant.actor)


async def tenants_members(
    tenant_id: str, session: AdminSession, state: State, admin: CurrentAdmin
) -> MemberService:
    """Raises NotFoundError for a tenant that is none."""
    await TenantService(session, audit=state.audit, actor=admin.actor).tenant(tenant_id)
    return _service(session, state, tenant_id, admin.actor, admin.key_prefix)


async def operators_members(
    session: AdminSession, state: State, admin: CurrentAdmin
) -> MemberService:
    return _service(session, state, None, admin.actor, admin.key_prefix)


def _service(
    session: AsyncSession,
    state: AppState,
    tenant_id: str | None,
    actor: str,
    key_prefix: str | None = None,
) -> MemberService:
    async def has_owners_key() -> bool:
        await operators.lock_owners(session)
        configured = bool(state.auth.admins.configured_ids)
        return configured or await operators.has_other_owner(session, ())

    return MemberService(
        session,
        tenant_id=tenant_id,
        audit=state.audit,
        secret=state.secret,
        actor=actor,
        key_prefix=key_prefix,
        base_url=state.settings.base_url,
        keys=state.auth.admins,
        has_owner=has_owners_key if tenant_id is None else None,
    )


# Function scope, as the sessions have.
Own = Annotated[MemberService, Depends(own_members, scope="function")]
OwnWidely = Annotated[MemberService, Depends(own_members_widely, scope="function")]
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
    members: OwnWidely,
    tenant: PeopleTenant,
    session: WideSession,
    state: State,
    revoke_keys: RevokeKeys = True,
) -> MemberOut:
    """Change a person's role, effective with the next request. Of what they created, open
    invitations are withdrawn and API keys revoked that the new role does not allow. The last owner
    stays an owner."""
    member = await members.change(person_id, body.role)
    keys = _Keys(state, session, tenant.tenant_id, tenant.actor)
    return await keys.changed(member, revoke_keys)


@own.delete("/people/{person_id}")
async def remove_person(
    person_id: str,
    members: OwnWidely,
    tenant: PeopleTenant,
    session: WideSession,
    state: State,
    revoke_keys: RevokeKeys = True,
) -> Deleted:
    """Remove a person, at once and everywhere: their sessions and requests in flight end, open
    invitations that they made are withdrawn, API keys that they created or rotated are revoked, and
    webhook endpoints that they created are disabled. The last owner cannot be removed."""
    await members.remove(person_id)
    keys = _Keys(state, session, tenant.tenant_id, tenant.actor)
    return await keys.removed(person_id, revoke_keys)


@own.delete("/people/{person_id}/sessions")
async def end_persons_sessions(
    person_id: str, members: OwnWidely, tenant: PeopleTenant, session: WideSession, state: State
) -> Deleted:
    """End all sessions of a person at this tenant; they can sign in again."""
    await members.end_sessions(person_id)
    return await _signed_out(state, session, person_id, tenant.tenant_id)


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
    tenant_id: str,
    person_id: str,
    body: MemberChange,
    members: OfTenant,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    revoke_keys: RevokeKeys = True,
) -> MemberOut:
    member = await members.change(person_id, body.role)
    return await _Keys(state, session, tenant_id, admin.actor).changed(member, revoke_keys)


@admin.delete("/people/{person_id}", dependencies=MAY_WRITE)
async def remove_tenants_person(
    tenant_id: str,
    person_id: str,
    members: OfTenant,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    revoke_keys: RevokeKeys = True,
) -> Deleted:
    await members.remove(person_id)
    keys = _Keys(state, session, tenant_id, admin.actor)
    return await keys.removed(person_id, revoke_keys)


@admin.delete("/people/{person_id}/sessions", dependencies=MAY_WRITE)
async def end_tenants_persons_sessions(
    tenant_id: str, person_id: str, members: OfTenant, session: AdminSession, state: State
) -> Deleted:
    await members.end_sessions(person_id)
    return await _signed_out(state, session, person_id, tenant_id)


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
    person_id: str,
    body: OperatorChange,
    members: OfOperator,
    admin_keys: AdminKeys,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    revoke_keys: RevokeKeys = True,
) -> MemberOut:
    """As PATCH /v1/people/{person_id}. Who is an owner no more loses the admin keys that they
    created, and who may not create tenants' keys any more those that they created."""
    member = await members.change(person_id, body.role)
    makers: list[str] = []
    if revoke_keys and body.role != "owner":
        makers = await admin_keys.revoke_made_by(f"person:{person_id}")
    if revoke_keys and body.role not in ("owner", "operator"):
        makers.append(f"person:{person_id}")
    await end_made_by(state, session, makers, admin.actor)
    return member


@operator.delete("/people/{person_id}", dependencies=OWNERS)
async def remove_operators_person(
    person_id: str,
    members: OfOperator,
    admin_keys: AdminKeys,
    session: AdminSession,
    state: State,
    admin: CurrentAdmin,
    revoke_keys: RevokeKeys = True,
) -> Deleted:
    """Remove one of the operator's people: their sessions end, open invitations that they made are
    withdrawn, and the admin keys and tenants' API keys that they created are revoked. The last
    owner cannot be removed."""
    await members.remove(person_id)
    maker = f"person:{person_id}"
    makers = [maker, *await admin_keys.revoke_made_by(maker)] if revoke_keys else []
    await end_made_by(state, session, makers, admin.actor)
    return Deleted(id=person_id, object="person")


@operator.delete("/people/{person_id}/sessions", dependencies=OWNERS)
async def end_operators_persons_sessions(
    person_id: str, members: OfOperator, session: AdminSession, state: State
) -> Deleted:
    """End all sessions of one of the operator's people; they can sign in again."""
    await members.end_sessions(person_id)
    return await _signed_out(state, session, person_id)


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


@dataclass(frozen=True, slots=True)
class _Keys:
    """Those that a person created at a tenant, as its service revokes them, and their webhooks."""

    state: AppState
    session: AsyncSession
    tenant_id: str
    actor: str

    async def revoke(self, person_id: str, *, within: Collection[str] = ()) -> list[str]:
        """All but those with no scope outside of `within`; webhooks, too, which need `keys`."""
        maker = f"person:{person_id}"
        if "keys" not in within:
            await disable_made_by(
                self.session,
                self.state.audit,
                [maker],
                tenant_id=self.tenant_id,
                actor=self.actor,
            )
        keys = ApiKeyService(
            self.session,
            tenant_id=self.tenant_id,
            audit=self.state.audit,
            secret=self.state.secret,
            actor=self.actor,
        )
        return await keys.revoke_made_by(maker, within=within)

    async def changed(self, member: MemberOut, revoke: bool) -> MemberOut:
        """The person has another role: what they created with the one before ends."""
        role = cast(MemberRole, member.role)
        may = [scope for scope in SCOPES if role_may(role, scope, reads=False)]
        ended = await self.revoke(member.id, within=may) if revoke else []
        await self._commit(ended)
        return member

    async def removed(self, person_id: str, revoke: bool) -> Deleted:
        ended = await self.revoke(person_id) if revoke else []
        await self._commit(ended)
        await self.state.flights.person_removed(self.tenant_id, person_id)
        return Deleted(id=person_id, object="person")

    async def _commit(self, ended: Collection[str]) -> None:
        await self.state.auth.commit_change(self.session, self.tenant_id)
        for key in ended:
            await self.state.flights.key_revoked(key)


async def _signed_out(
    state: AppState, session: AsyncSession, person_id: str, *tenant_ids: str
) -> Deleted:
    await state.auth.commit_change(session, *tenant_ids)
    return Deleted(id=person_id, object="sessions")


router.include_router(own)
router.include_router(admin)
router.include_router(operator)
