"""HTTP routes of reconciliations, the operator's. What was used and is not billed is in
`usage.routes`, at the address above."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.reconciliation import repository
from tenora_platform.reconciliation.schemas import Run, RunCreate, RunPage
from tenora_platform.reconciliation.tables import ReconciliationRow
from tenora_platform.reconciliation.task import Scope
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession
from tenora_platform.tenants.repository import get_tenant

router = APIRouter(
    prefix="/admin/v1/reconciliation/runs",
    tags=["usage"],
    route_class=EdgeRoute,
    # Whoever may read the books may have them proved: nothing in them changes.
    dependencies=[Depends(require_role(*MONEY_READERS))],
)


@router.post("", status_code=202)
async def ask_for_run(body: RunCreate, session: AdminSession, admin: CurrentAdmin) -> Run:
    """Start a reconciliation of the books, layer by layer: events with their seals and prices,
    sums, ledger, engine and invoices. A worker runs it; poll the run until its state is `done` or
    `failed`."""
    if body.tenant is not None and await get_tenant(session, body.tenant) is None:
        raise NotFoundError(f"There is no tenant with the id {body.tenant!r}.", param="tenant")
    if body.first is not None and body.last is not None and body.first > body.last:
        raise BadRequestError(
            "first must not be later than last.", param="first", code="invalid_value"
        )
    scope = Scope(mode=body.mode, tenant_id=body.tenant, first=body.first, last=body.last)
    return Run.of(await repository.ask(session, scope, admin.actor))


@router.get("")
async def list_runs(session: AdminSession, after: After = None, limit: Limit = 20) -> RunPage:
    """List reconciliation runs, newest first. `schedule` selects those that ran automatically."""
    rows = await repository.list_runs(session, after=after, limit=limit)
    return RunPage.of([Run.of(row) for row in rows], limit)


@router.get("/{run_id}")
async def get_run(run_id: str, session: AdminSession) -> Run:
    """Get one run with the differences it found."""
    row = await session.get(ReconciliationRow, run_id)
    if row is None:
        raise NotFoundError(f"There is no reconciliation run {run_id[:80]!r}.")
    return Run.of(row)
