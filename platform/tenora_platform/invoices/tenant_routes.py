"""HTTP routes of a tenant's own invoices, down to the requests behind a line, and of whom they are
for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from tenora_platform.auth import TenantContext, require_scope
from tenora_platform.edge import EdgeRoute
from tenora_platform.invoices import views
from tenora_platform.invoices.details import AskedLine, LineDetails, details_of
from tenora_platform.invoices.documents import csv_response, pdf_response
from tenora_platform.invoices.parties import profile_view, put_profile
from tenora_platform.invoices.period import first_day
from tenora_platform.invoices.repository import Filter, profile
from tenora_platform.invoices.routes import OfKind, Period
from tenora_platform.invoices.schemas import BillingProfile, Invoice, InvoicePage, ProfileBody
from tenora_platform.schemas import After, Limit
from tenora_platform.state import State

router = APIRouter(prefix="/v1", tags=["invoices"], route_class=EdgeRoute)
UsageTenant = Annotated[TenantContext, Depends(require_scope("usage"))]
BillingTenant = Annotated[TenantContext, Depends(require_scope("keys", right="billing"))]


@router.get("/invoices")
async def list_invoices(
    state: State,
    tenant: UsageTenant,
    period: Period = None,
    kind: OfKind = None,
    after: After = None,
    limit: Limit = 20,
) -> InvoicePage:
    """List invoices and credit notes, newest first; including void ones, without drafts."""
    of_period = first_day(period) if period else None
    chosen = Filter(tenant.tenant_id, of_period, kind=kind, drafts=False)
    async with state.db.tenant_session(tenant.tenant_id) as session:
        return await views.page(session, chosen, after=after, limit=limit)


async def _own(state: State, tenant: TenantContext, invoice_id: str) -> Invoice:
    async with state.db.tenant_session(tenant.tenant_id) as session:
        row = await views.row_of(session, invoice_id, tenant.tenant_id)
        return await views.whole(session, row)


@router.get("/invoices/{invoice_id}.csv", response_class=Response)
async def get_invoice_csv(invoice_id: str, state: State, tenant: UsageTenant) -> Response:
    """Get the lines of an invoice as a CSV file."""
    invoice = await _own(state, tenant, invoice_id)
    return csv_response(invoice)


@router.get("/invoices/{invoice_id}.pdf", response_class=Response)
async def get_invoice_pdf(invoice_id: str, state: State, tenant: UsageTenant) -> Response:
    """Get an invoice as a PDF document."""
    invoice = await _own(state, tenant, invoice_id)
    return await pdf_response(invoice, state.settings.invoice_font)


@router.get("/invoices/{invoice_id}")
async def get_invoice(invoice_id: str, state: State, tenant: UsageTenant) -> Invoice:
    """Get an invoice with its lines; `/lines/{no}` shows what is behind each."""
    return await _own(state, tenant, invoice_id)


@router.get("/invoices/{invoice_id}/lines/{no}")
async def get_invoice_line(
    invoice_id: str,
    no: int,
    state: State,
    tenant: UsageTenant,
    query: AskedLine,
) -> LineDetails:
    """Get the usage behind a line, by day, adapter, key or request."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        row = await views.row_of(session, invoice_id, tenant.tenant_id)
        return await details_of(session, row, no, query)


@router.get("/billing_profile")
async def get_billing_profile(state: State, tenant: UsageTenant) -> BillingProfile:
    """Get the recipient of your invoices."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        return profile_view(tenant.tenant_id, await profile(session, tenant.tenant_id))


@router.put("/billing_profile")
async def put_billing_profile(
    body: ProfileBody, state: State, tenant: BillingTenant
) -> BillingProfile:
    """Set the recipient of your next invoices. Only the operator can set the tax."""
    async with state.db.tenant_session(tenant.tenant_id) as session:
        return await put_profile(
            session,
            state.audit,
            tenant.actor,
            tenant.tenant_id,
            body.model_dump(),
        )
