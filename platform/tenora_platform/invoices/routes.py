"""HTTP routes of invoices for the operator: runs, and what can be done to an invoice."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import Response

from tenora_platform.auth import CurrentAdmin, require_role
from tenora_platform.edge import EdgeRoute
from tenora_platform.errors import BadRequestError, NotFoundError
from tenora_platform.invoices import views
from tenora_platform.invoices.details import AskedLine, LineDetails, details_of
from tenora_platform.invoices.documents import csv_response, pdf_response
from tenora_platform.invoices.period import PeriodName, before, first_day, month_of, name_of
from tenora_platform.invoices.repository import Filter
from tenora_platform.invoices.run_job import KIND as INVOICES
from tenora_platform.invoices.run_job import ROLES
from tenora_platform.invoices.runs import InvoiceRuns, Report, Wanted
from tenora_platform.invoices.schemas import (
    CreditNoteBody,
    Invoice,
    InvoicePage,
    InvoiceRun,
    Kind,
    Payment,
    PaymentBody,
    RunBody,
    RunFailure,
    RunJob,
    RunJobBody,
    RunJobPage,
    Status,
    VoidBody,
)
from tenora_platform.invoices.service import InvoiceService
from tenora_platform.jobs import repository as jobs
from tenora_platform.jobs.cancelling import cancel
from tenora_platform.jobs.tables import JobRow
from tenora_platform.operators.roles import MONEY_READERS
from tenora_platform.paging import Asked
from tenora_platform.schemas import After, Limit
from tenora_platform.state import AdminSession, AppState, State
from tenora_platform.tenants.repository import get_tenant

RUN_S = 40.0
"""After so long a run over many tenants answers, and says where the next one goes on."""
_SHOWN_MAX = 100

router = APIRouter(prefix="/admin/v1/invoices", tags=["invoices"], route_class=EdgeRoute)
Readers = Depends(require_role(*MONEY_READERS))
Biller = Depends(require_role(*ROLES))
Period = Annotated[
    PeriodName | None, Query(description='Only invoices of this month, such as "2026-11"')
]
OfStatus = Annotated[
    Status | None, Query(alias="status", description="Only invoices with this status")
]
OfKind = Annotated[
    Kind | None, Query(alias="kind", description="Only invoices, or only credit notes")
]

InvoiceSort = Annotated[
    Literal["created", "-created", "due", "-due", "number", "-number", "total", "-total"],
    Query(
        description="Sort order; '-' in front means descending. `total` sorts within each "
        "currency, one currency after the other."
    ),
]


async def service_of(session: AdminSession, state: State, admin: CurrentAdmin) -> InvoiceService:
    return InvoiceService(session, ledger=state.ledger, audit=state.audit, actor=admin.actor)


Service = Annotated[InvoiceService, Depends(service_of, scope="function")]


@router.post("/run", dependencies=[Biller])
async def run_invoices(body: RunBody, state: State, admin: CurrentAdmin) -> InvoiceRun:
    """Make the invoices of a month, each tenant's in a transaction of its own: an interrupted run
    can be started again, and final invoices stay as they are."""
    now = datetime.now(UTC)
    period = first_day(body.period) if body.period else before(month_of(now))
    async with state.db.admin_session() as session:
        await _check_tenant(session, body.tenant)
    runs = InvoiceRuns(state.db.patient(), state.ledger, state.audit, admin.actor)
    wanted = Wanted(period, body.tenant, body.draft, body.after)
    report = await runs.run(wanted, most_s=RUN_S)
    state.metrics.invoices.labels("final" if report.final else "draft").inc(len(report.made))
    return await _report_view(state, name_of(period), report)


@router.post("/runs", status_code=202, dependencies=[Biller])
async def start_run(
    body: RunJobBody, session: AdminSession, state: State, admin: CurrentAdmin
) -> RunJob:
    """Start a run over many tenants. A worker makes each tenant's invoice in a transaction of its
    own; poll the run until its state is `done`, `failed` or `cancelled`."""
    await _check_tenant(session, body.tenant)
    period = first_day(body.period) if body.period else before(month_of(datetime.now(UTC)))
    runs = InvoiceRuns(state.db, state.ledger, state.audit, admin.actor)
    # Once for all tenants, however long it takes.
    is_final = await runs.is_final(Wanted(period, body.tenant, body.draft))
    spec = {"period": name_of(period), "tenant": body.tenant, "draft": not is_final}
    row = await jobs.ask(session, INVOICES, spec, admin.actor, admin.key_prefix)
    return RunJob.of(row)


@router.get("/runs", dependencies=[Readers])
async def list_runs(session: AdminSession, after: After = None, limit: Limit = 20) -> RunJobPage:
    """List runs that were started, newest first."""
    rows = await jobs.list_jobs(session, INVOICES, after=after, limit=limit)
    return RunJobPage.of([RunJob.of(row) for row in rows], limit)


@router.get("/runs/{run_id}", dependencies=[Readers])
async def get_run(run_id: str, session: AdminSession) -> RunJob:
    """Get one run: how far it is, and what it has made."""
    return RunJob.of(await _run(session, run_id))


@router.post("/runs/{run_id}/cancel", dependencies=[Biller])
async def cancel_run(
    run_id: str, session: AdminSession, state: State, admin: CurrentAdmin
) -> RunJob:
    """Cancel a run that has not ended. The invoices that it has made stay."""
    row = await _run(session, run_id)
    await cancel(session, state.audit, row, admin.actor)
    return RunJob.of(row)


async def _run(session: AsyncSession, job_id: str) -> JobRow:
    """Raises NotFoundError."""
    row = await jobs.find(session, job_id, INVOICES)
    if row is None:
        raise NotFoundError(f"There is no invoice run {job_id[:80]!r}.")
    return row


async def _check_tenant(session: AsyncSession, tenant_id: str | None) -> None:
    if tenant_id is not None and await get_tenant(session, tenant_id) is None:
        raise BadRequestError(
            f"There is no tenant with the id {tenant_id!r}.", param="tenant", code="unknown_tenant"
        )


async def _report_view(state: AppState, period: str, report: Report) -> InvoiceRun:
    async with state.db.admin_session() as session:
        shown = await views.summaries(session, report.made[:_SHOWN_MAX])
    return InvoiceRun(
        period=period,
        status="final" if report.final else "draft",
        made=len(report.made),
        unchanged=report.unchanged,
        empty=report.empty,
        failed=[RunFailure(tenant=tenant, reason=reason) for tenant, reason in report.failed],
        invoices=shown,
        has_more=report.next_after is not None,
        next_after=report.next_after,
    )


@router.get("", dependencies=[Readers])
async def list_all_invoices(
    session: AdminSession,
    tenant: Annotated[str | None, Query(description="Only the tenant with this id")] = None,
    period: Period = None,
    status: OfStatus = None,
    kind: OfKind = None,
    q: Asked = None,
    sort: InvoiceSort = "-created",
    after: After = None,
    limit: Limit = 20,
) -> InvoicePage:
    """List invoices and credit notes including drafts, newest first unless `sort` says otherwise.
    `q` is part of the number, the tenant's name, or an id."""
    of_period = first_day(period) if period else None
    chosen = Filter(tenant, of_period, status, kind, q=q, sort=sort)
    return await views.page(session, chosen, after=after, limit=limit)


@router.get("/{invoice_id}.csv", dependencies=[Readers], response_class=Response)
async def get_any_invoice_csv(invoice_id: str, session: AdminSession) -> Response:
    """Get the lines of an invoice as a CSV file."""
    invoice = await views.whole(session, await views.row_of(session, invoice_id))
    return csv_response(invoice)


@router.get("/{invoice_id}.pdf", dependencies=[Readers], response_class=Response)
async def get_any_invoice_pdf(invoice_id: str, session: AdminSession, state: State) -> Response:
    """Get an invoice as a PDF document."""
    invoice = await views.whole(session, await views.row_of(session, invoice_id))
    return await pdf_response(invoice, state.settings.invoice_font)


@router.get("/{invoice_id}", dependencies=[Readers])
async def get_any_invoice(invoice_id: str, session: AdminSession) -> Invoice:
    return await views.whole(session, await views.row_of(session, invoice_id))


@router.get("/{invoice_id}/lines/{no}", dependencies=[Readers])
async def get_any_invoice_line(
    invoice_id: str, no: int, session: AdminSession, query: AskedLine
) -> LineDetails:
    """Get the usage behind a line, by day, adapter, key or request."""
    row = await views.row_of(session, invoice_id)
    return await details_of(session, row, no, query)


@router.post("/{invoice_id}/void", dependencies=[Biller])
async def void_invoice(invoice_id: str, body: VoidBody, service: Service) -> Invoice:
    """Void a final invoice. It keeps its number; its usage is invoiced again by the next run. 409
    `invoice_is_settled` if there are payments or credit notes."""
    row = await service.void(invoice_id, body.reason)
    await service.session.flush()
    return await views.whole(service.session, row)


@router.post("/{invoice_id}/credit_notes", status_code=201, dependencies=[Biller])
async def create_credit_note(invoice_id: str, body: CreditNoteBody, service: Service) -> Invoice:
    """Credit some of the lines of a final invoice, with their tax. The credit note has a number
    from its own series."""
    lines = {line.no: line.amount for line in body.lines}
    if len(lines) < len(body.lines):
        raise BadRequestError(
            "lines contains the same line twice.", param="lines", code="invalid_value"
        )
    note = await service.credit(invoice_id, lines, body.reason)
    await service.session.flush()
    return await views.whole(service.session, note)


@router.post("/{invoice_id}/payments", status_code=201, dependencies=[Biller])
async def create_payment(invoice_id: str, body: PaymentBody, service: Service) -> Payment:
    """Record a payment that was received. The same `reference` again is the same payment."""
    payment = await service.pay(invoice_id, body.amount, body.reference, body.paid_at)
    row = await views.row_of(service.session, invoice_id)
    return Payment.of(payment, row.currency)
