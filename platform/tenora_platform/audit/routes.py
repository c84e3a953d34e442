"""HTTP routes of the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import StreamingResponse

from tenora_platform.audit import repository
from tenora_platform.audit.schemas import AuditEntry, AuditPage, AuditVerification
from tenora_platform.audit.service import OPERATOR
from tenora_platform.auth import TenantContext, require_role, require_scope
from tenora_platform.db import Database
from tenora_platform.edge import EdgeRoute
from tenora_platform.ledger.verify import problems
from tenora_platform.operators.roles import READERS
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State, TenantSession

_NAMED_MAX = 20
_EXPORTED_AT_ONCE = 500
router = APIRouter(tags=["audit"], route_class=EdgeRoute)


@router.get("/v1/audit_logs")
async def list_own_entries(
    session: TenantSession,
    tenant: Annotated[TenantContext, Depends(require_scope("keys"))],
    action: str | None = None,
    actor: str | None = None,
    target: str | None = None,
    after: After = None,
    limit: Limit = 50,
) -> AuditPage:
    """What was done to the tenant's keys, adapters and settings, by whom, from where; newest
    first. What the operator did to them is among it."""
    rows = await repository.list_entries(
        session,
        tenant_id=tenant.tenant_id,
        action=action,
        actor=actor,
        target=target,
        after=after,
        limit=limit,
    )
    return AuditPage.of([AuditEntry.of(row) for row in rows], limit)


@router.get("/admin/v1/audit_logs", dependencies=[Depends(require_role(*READERS))])
async def list_entries(
    session: AdminSession,
    tenant_id: str | None = None,
    action: str | None = None,
    actor: str | None = None,
    target: str | None = None,
    after: After = None,
    limit: Limit = 50,
) -> AuditPage:
    """What was done, by whom, from where, to what; newest first."""
    rows = await repository.list_entries(
        session,
        tenant_id=tenant_id,
        action=action,
        actor=actor,
        target=target,
        after=after,
        limit=limit,
    )
    return AuditPage.of([AuditEntry.of(row) for row in rows], limit)


@router.get(
    "/admin/v1/audit_logs/export",
    dependencies=[Depends(require_role(*READERS))],
    response_class=StreamingResponse,
)
async def export(
    state: State,
    tenant_id: Annotated[str | None, Query(description="Only this tenant's chain")] = None,
    operator: Annotated[bool, Query(description="Only the operator's chain")] = False,
) -> StreamingResponse:
    """Every entry as a line of JSON, chain by chain, in the order in which they were written."""
    chain = OPERATOR if operator else tenant_id
    return StreamingResponse(_lines(state.db.patient(), chain), media_type="application/x-ndjson")


async def _lines(db: Database, chain: str | None) -> AsyncIterator[bytes]:
    """Each batch in a session of its own, so that a slow reader holds no transaction open."""
    place = ("", 0)
    while True:
        async with db.admin_session() as session:
            rows = await repository.next_entries(session, chain, place, _EXPORTED_AT_ONCE)
        if not rows:
            return
        yield b"".join(AuditEntry.of(row).model_dump_json().encode() + b"\n" for row in rows)
        place = (rows[-1].chain, rows[-1].seq)


@router.get("/admin/v1/audit_logs/verification", dependencies=[Depends(require_role(*READERS))])
async def verify(session: AdminSession, state: State) -> AuditVerification:
    """Walk every chain of the audit log and of the ledger, and say whether each entry is as it was
    written."""
    found = await state.audit.verify(session)
    named = [] if found is None else [found]
    async for problem in problems(session, state.ledger.chain):
        named.append(problem)
        if len(named) >= _NAMED_MAX:
            break
    return AuditVerification(valid=not named, problem=next(iter(named), None), problems=named)
