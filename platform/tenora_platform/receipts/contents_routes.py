"""HTTP routes of what a tenant chooses for itself, and of the contents that it had kept. Contents
are for keys that may make keys: whoever pays the bills need not read the mail."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Response
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import CurrentTenant, TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import ForbiddenError, NotFoundError
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.receipts import contents_repository as repository
from tenora_platform.receipts import stored_repository
from tenora_platform.receipts.contents import Seal
from tenora_platform.receipts.repository import find
from tenora_platform.receipts.schemas import Contents, TenantSettings, TenantSettingsChange
from tenora_platform.receipts.tables import KeptContentsRow, TenantSettingsRow
from tenora_platform.schemas import Deleted
from tenora_platform.state import AdminSession, State, TenantSession
from tenora_platform.tenants.repository import get_plan, get_tenant

router = APIRouter(prefix="/v1", tags=["receipts"], route_class=EdgeRoute)
admin = APIRouter(
    prefix="/admin/v1/tenants/{tenant_id}/settings",
    tags=["admin"],
    dependencies=[Depends(require_role(*MONEY_READERS))],
    route_class=EdgeRoute,
)
KeysTenant = Annotated[TenantContext, Depends(require_scope("keys"))]


@router.get("/settings")
async def get_settings(session: TenantSession, tenant: CurrentTenant) -> TenantSettings:
    """Get the tenant's own settings."""
    row = await repository.settings_of(session, tenant.tenant_id)
    return _shown(_values(row), is_allowed=tenant.plan.stored_responses)


@admin.get("")
async def get_tenant_settings(tenant_id: str, session: AdminSession) -> TenantSettings:
    """Get what a tenant has chosen for itself. Only its own people and keys can change it."""
    tenant = await get_tenant(session, tenant_id)
    if tenant is None:
        raise NotFoundError(f"There is no tenant with the id {tenant_id!r}.")
    plan = await get_plan(session, tenant.plan)
    values = _values(await repository.settings_of(session, tenant_id))
    return _shown(values, is_allowed=plan is not None and plan.stored_responses)


@router.patch("/settings")
async def change_settings(
    body: TenantSettingsChange, session: TenantSession, state: State, tenant: KeysTenant
) -> TenantSettings:
    """Change the tenant's settings. `keep_contents_days`: keep prompts and answers for so many days
    (a shorter time also applies to what is already kept); null: keep no more of them. Kept contents
    are deleted when their time is over, or now with `delete_kept_contents`. `stored_response_days`
    and `delete_stored_responses`: the same for stored responses; more days need such a plan.
    `draft_from_answers`: use this tenant's answers as drafts for its later ones (speculative
    decoding); answers that repeat earlier ones come sooner, and are the same. Needs the scope
    `keys`."""
    await repository.lock_settings(session, tenant.tenant_id)
    before = _values(await repository.settings_of(session, tenant.tenant_id))
    if not tenant.plan.stored_responses:
        _refuse_longer(before["stored_response_days"], body.stored_response_days)
    chosen = {name: getattr(body, name) for name in before if name in body.model_fields_set}
    if chosen:
        await repository.choose(session, tenant.tenant_id, chosen)
    # Behind the change, whose lock on the row holds back what is being written.
    details = await _deleted(session, tenant.tenant_id, body)
    await state.audit.append(
        session,
        actor=tenant.actor,
        action="settings.update",
        target=tenant.tenant_id,
        tenant_id=tenant.tenant_id,
        before=before,
        after=before | chosen,
        details=details,
    )
    await state.auth.commit_change(session, tenant.tenant_id)
    return _shown(before | chosen, is_allowed=tenant.plan.stored_responses)


def _refuse_longer(before: int | None, days: int | None) -> None:
    """To store, or for longer than before. To shorten it is no matter of the plan's."""
    if days is not None and (before is None or days > before):
        raise ForbiddenError(
            "The tenant's plan does not include stored responses. Ask the operator of this server.",
            param="stored_response_days",
            code="stored_responses_not_in_plan",
        )


async def _deleted(
    session: AsyncSession, tenant_id: str, body: TenantSettingsChange
) -> dict[str, int]:
    """What was deleted, as the audit log says it."""
    deleted = {"deleted_contents": 0}
    if body.delete_kept_contents:
        deleted["deleted_contents"] = await repository.forget_all(session, tenant_id)
    if body.delete_stored_responses:
        deleted["deleted_responses"] = await stored_repository.forget_all(session, tenant_id)
    return deleted


def _values(row: TenantSettingsRow | None) -> dict[str, Any]:
    if row is None:
        return {
            "keep_contents_days": None,
            "stored_response_days": None,
            "draft_from_answers": False,
        }
    return {
        "keep_contents_days": row.keep_contents_days,
        "stored_response_days": row.stored_response_days,
        "draft_from_answers": row.draft_from_answers,
    }


def _shown(values: dict[str, Any], *, is_allowed: bool) -> TenantSettings:
    return TenantSettings(**values, stored_responses_allowed=is_allowed)


@router.get("/requests/{request_id}/contents", response_model=Contents)
async def get_contents(request_id: str, state: State, tenant: KeysTenant) -> Response:
    """Get the prompts and answers of one request, by the answer's id or the x-request-id, if they
    were kept. Needs the scope `keys`."""
    async with state.opening.turn(tenant.tenant_id):
        async with state.db.tenant_session(tenant.tenant_id) as session:
            row = await repository.kept(session, await _answers_id(session, request_id, tenant))
        if row is None:
            raise _none_kept(request_id)
        text = await state.opening.work(partial(_contents, state.contents.seal, tenant, row))
    return Response(text, media_type="application/json")


def _contents(seal: Seal, tenant: TenantContext, row: KeptContentsRow) -> bytes:
    """`Contents` as JSON. What was sealed is JSON, but for numbers that JSON does not have."""
    found = seal.open_text(tenant.tenant_id, row.request_id, row.sealed)
    if found is None:
        raise NotFoundError(
            "These contents can no longer be read, because the server's secret has changed.",
            code="contents_unreadable",
        )
    if b"NaN" in found or b"Infinity" in found:
        found = msgspec.json.encode(json.loads(found))  # null
    head: dict[str, Any] = {"object": "request.contents", "id": row.request_id}
    head |= {"created_at": row.created_at, "expires_at": row.expires_at}
    return b"%b,%b" % (msgspec.json.encode(head)[:-1], found[1:])


@router.delete("/requests/{request_id}/contents")
async def delete_contents(
    request_id: str, session: TenantSession, state: State, tenant: KeysTenant
) -> Deleted:
    """Delete the kept contents of one request, now."""
    answers_id = await _answers_id(session, request_id, tenant)
    if not await repository.forget(session, answers_id):
        raise _none_kept(request_id)
    await state.audit.append(
        session,
        actor=tenant.actor,
        action="contents.delete",
        target=answers_id,
        tenant_id=tenant.tenant_id,
    )
    return Deleted(id=answers_id, object="request.contents")


async def _answers_id(session: AsyncSession, name: str, tenant: TenantContext) -> str:
    """Contents may be there before the request is in the books: a name that is not known there may
    be the answer's id."""
    found = await find(session, name, tenant.tenant_id)
    return name if found is None else found.id


def _none_kept(request_id: str) -> NotFoundError:
    return NotFoundError(f"No contents are stored for the request {request_id[:80]!r}.")
