"""Reads invoices for answers: the rows of one or of many, with what was paid and credited. It
decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.errors import NotFoundError
from tenora_platform.invoices import repository
from tenora_platform.invoices.repository import Filter
from tenora_platform.invoices.schemas import Invoice, InvoicePage, InvoiceSummary
from tenora_platform.invoices.tables import InvoiceRow

_NOTHING = (Decimal(0), Decimal(0))


async def page(
    session: AsyncSession, chosen: Filter, *, after: str | None, limit: int
) -> InvoicePage:
    rows = await repository.list_invoices(session, chosen, after=after, limit=limit)
    return InvoicePage.of(await summaries(session, rows), limit)


async def summaries(session: AsyncSession, rows: Sequence[InvoiceRow]) -> list[InvoiceSummary]:
    settled = await repository.settled(session, [row.id for row in rows])
    return [InvoiceSummary.of(row, settled.get(row.id, _NOTHING)) for row in rows]


async def row_of(
    session: AsyncSession, invoice_id: str, tenant_id: str | None = None
) -> InvoiceRow:
    """By id, or by number; of `tenant_id` only if there is one, and no draft then. Raises
    NotFoundError."""
    row = await repository.get(session, invoice_id, tenant_id=tenant_id)
    if row is None:
        raise NotFoundError(f"There is no invoice {invoice_id[:80]!r}.")
    return row


async def whole(session: AsyncSession, row: InvoiceRow) -> Invoice:
    lines = (await repository.lines_of(session, [row.id]))[row.id]
    payments = await repository.payments_of(session, row.id)
    settled = await repository.settled(session, [row.id])
    return Invoice.whole(row, lines, payments, settled.get(row.id, _NOTHING))
