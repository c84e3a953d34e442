"""HTTP routes of the audit log."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tenora_platform.audit import repository
from tenora_platform.audit.schemas import AuditEntry, AuditPage, AuditVerification
from tenora_platform.auth import require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.ledger.verify import problems
from tenora_platform.operators.roles import READERS
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, State

_NAMED_MAX = 20
router = APIRouter(prefix="/admin/v1/audit_logs", tags=["audit"], route_class=EdgeRoute)


@router.get("", dependencies=[Depends(require_role(*READERS))])
async def list_entries(
    session: AdminSession,
    tenant_id: str | None = None,
    action: str | None = None,
    after: After = None,
    limit: Limit = 50,
) -> AuditPage:
    """What was done, by whom, to what; newest first."""
    rows = await repository.list_entries(
        session, tenant_id=tenant_id, action=action, after=after, limit=limit
    )
    return AuditPage.of([AuditEntry.of(row) for row in rows], limit)


@router.get("/verification", dependencies=[Depends(require_role(*READERS))])
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
