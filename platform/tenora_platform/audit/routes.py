"""HTTP routes of the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import StreamingResponse

from tenora_platform.audit import repository
from tenora_platform.audit.names import names_of
from tenora_platform.audit.schemas import (
    AuditEntry,
    AuditPage,
    VerificationBody,
    VerificationJobView,
    VerificationPage,
)
from tenora_platform.audit.service import OPERATOR
from tenora_platform.audit.verify_job import KIND as VERIFY
from tenora_platform.audit.verify_job import ROLES
from tenora_platform.auth import CurrentAdmin, TenantContext, require_role, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import NotFoundError
from tenora_platform.exports import ndjson
from tenora_platform.jobs import repository as jobs
from tenora_platform.jobs.cancelling import cancel
from tenora_platform.jobs.tables import JobRow
from tenora_platform.operators.roles import READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit, Order
from tenora_platform.state import AdminSession, State, TenantSession
from tenora_platform.times import QueryTime

_EXPORTED_AT_ONCE = 500
router = APIRouter(tags=["audit"], route_class=EdgeRoute)


Action = Annotated[
    str | None,
    Query(
        description=(
            "Only entries with this action; `api_key.*` matches every action with that prefix"
        )
    ),
]
Actor = Annotated[
    str | None, Query(description="Only entries by this actor, such as person:person_...")
]
Target = Annotated[str | None, Query(description="Only entries about the target with this id")]
Start = Annotated[QueryTime | None, Query(description="Only entries at or after this time")]
End = Annotated[QueryTime | None, Query(description="Only entries before this time")]


@router.get("/v1/audit_logs")
async def list_own_entries(
    session: TenantSession,
    tenant: Annotated[TenantContext, Depends(require_scope("keys"))],
    action: Action = None,
    actor: Actor = None,
    target: Target = None,
    asked: Asked = None,
    start: Start = None,
    end: End = None,
    order: Order = "desc",
    after: After = None,
    limit: Limit = 50,
) -> AuditPage:
    """What was done to the tenant's keys, adapters and settings, by whom, from where; newest first
    if not said otherwise. What the operator did to them is among it. `q` looks in actors, actions,
    targets and ids, and in what actors and targets are called."""
    wanted = repository.Filter(
        tenant_id=tenant.tenant_id,
        action=action,
        actor=actor,
        target=target,
        asked=asked,
        start=start,
        end=end,
    )
    return await _page(session, wanted, order, after, limit, by_operator=False)


@router.get("/admin/v1/audit_logs", dependencies=[Depends(require_role(*READERS))])
async def list_entries(
    session: AdminSession,
    tenant_id: str | None = None,
    operator: Annotated[
        bool, Query(description="Only the operator's own entries (those of no tenant)")
    ] = False,
    action: Action = None,
    actor: Actor = None,
    target: Target = None,
    asked: Asked = None,
    start: Start = None,
    end: End = None,
    order: Order = "desc",
    after: After = None,
    limit: Limit = 50,
) -> AuditPage:
    """What was done, by whom, from where, to what; newest first if not said otherwise. `q` looks in
    actors, actions, targets and ids, and in what actors, targets and tenants are called."""
    wanted = repository.Filter(
        by_operator=True,
        tenant_id=tenant_id,
        operator=operator,
        action=action,
        actor=actor,
        target=target,
        asked=asked,
        start=start,
        end=end,
    )
    return await _page(session, wanted, order, after, limit, by_operator=True)


async def _page(
    session: AsyncSession,
    wanted: repository.Filter,
    order: str,
    after: str | None,
    limit: int,
    *,
    by_operator: bool,
) -> AuditPage:
    rows = await repository.list_entries(
        session, wanted, oldest_first=order == "asc", after=after, limit=limit
    )
    ids = {each for row in rows for each in (row.target, row.tenant_id) if each}
    names = await names_of(session, {row.actor for row in rows}, ids, by_operator=by_operator)
    return AuditPage.of([AuditEntry.of(row, names) for row in rows], limit)


@router.get("/v1/audit_logs/export", response_class=StreamingResponse)
async def export_own(
    state: State, tenant: Annotated[TenantContext, Depends(require_scope("keys"))]
) -> StreamingResponse:
    """Export all of the tenant's audit entries as JSON lines, oldest first."""
    sessions = partial(state.db.patient().tenant_session, tenant.tenant_id)
    return await _exported(sessions, tenant.tenant_id)


@router.get(
    "/admin/v1/audit_logs/export",
    dependencies=[Depends(require_role(*READERS))],
    response_class=StreamingResponse,
)
async def export(
    state: State,
    tenant_id: Annotated[
        str | None, Query(description="Only entries of the tenant with this id")
    ] = None,
    operator: Annotated[
        bool, Query(description="Only the operator's own entries (those of no tenant)")
    ] = False,
) -> StreamingResponse:
    """Export all audit entries as JSON lines: chain by chain, each oldest first."""
    chain = OPERATOR if operator else tenant_id
    return await _exported(state.db.patient().admin_session, chain)


Sessions = Callable[[], AbstractAsyncContextManager[AsyncSession]]


async def _exported(sessions: Sessions, chain: str | None) -> StreamingResponse:
    """Of one chain, or of all that the sessions may read."""
    disposition = 'attachment; filename="audit_log.jsonl"'
    return await ndjson(_lines(sessions, chain), headers={"content-disposition": disposition})


async def _lines(sessions: Sessions, chain: str | None) -> AsyncIterator[bytes]:
    """Each batch in a session of its own, so that a slow reader holds no transaction open."""
    place = ("", 0)
    while True:
        async with sessions() as session:
            rows = await repository.next_entries(session, chain, place, _EXPORTED_AT_ONCE)
        if not rows:
            return
        yield b"".join(AuditEntry.of(row).model_dump_json().encode() + b"\n" for row in rows)
        place = (rows[-1].chain, rows[-1].seq)


VERIFICATIONS = "/admin/v1/audit_logs/verifications"
Verifiers = Depends(require_role(*ROLES))


@router.post(VERIFICATIONS, status_code=202, dependencies=[Verifiers])
async def start_verification(
    body: VerificationBody, session: AdminSession, admin: CurrentAdmin
) -> VerificationJobView:
    """Start a verification of every hash chain. A worker does it; poll it until its state is
    `done`, `failed` or `cancelled`."""
    spec = {"mode": body.mode}
    row = await jobs.ask(session, VERIFY, spec, admin.actor, admin.key_prefix)
    return VerificationJobView.of(row)


@router.get(VERIFICATIONS, dependencies=[Verifiers])
async def list_verifications(
    session: AdminSession, after: After = None, limit: Limit = 20
) -> VerificationPage:
    """List verifications, newest first."""
    rows = await jobs.list_jobs(session, VERIFY, after=after, limit=limit)
    return VerificationPage.of([VerificationJobView.of(row) for row in rows], limit)


@router.get(f"{VERIFICATIONS}/{{verification_id}}", dependencies=[Verifiers])
async def get_verification(verification_id: str, session: AdminSession) -> VerificationJobView:
    """Get one verification: how far it is, and what it has found."""
    return VerificationJobView.of(await _verification(session, verification_id))


@router.post(f"{VERIFICATIONS}/{{verification_id}}/cancel", dependencies=[Verifiers])
async def cancel_verification(
    verification_id: str, session: AdminSession, state: State, admin: CurrentAdmin
) -> VerificationJobView:
    """Cancel a verification that has not ended."""
    row = await _verification(session, verification_id)
    await cancel(session, state.audit, row, admin.actor)
    return VerificationJobView.of(row)


async def _verification(session: AsyncSession, job_id: str) -> JobRow:
    """Raises NotFoundError."""
    row = await jobs.find(session, job_id, VERIFY)
    if row is None:
        raise NotFoundError(f"There is no verification {job_id[:80]!r}.")
    return row
