"""A digest of an invoice or credit note with its lines and the usage behind it, as it was made
final. The audit log keeps it, so that whoever changes a row is found; what it covers stays."""

from __future__ import annotations

from typing import LiteralString

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.invoices.tables import InvoiceRow

# Times as numbers: their texts hang on the session's time zone.
DIGESTS: LiteralString = """
SELECT i.id, encode(sha256(convert_to(CAST(jsonb_build_array(
  i.id, i.tenant_id, i.kind, i.period, i.currency, i.number, i.of_invoice, i.subtotal, i.tax,
  i.total, i.seller, i.buyer, i.terms, i.ledger_transaction_id, extract(epoch FROM i.created_at),
  extract(epoch FROM i.finalised_at), extract(epoch FROM i.due_at),
  (SELECT jsonb_agg(jsonb_build_array(l.no, l.tenant_id, l.kind, l.amount, l.exact, l.month,
            l.meter, l.class, l.price_version_no, l.quantity, l.prices, l.of_line) ORDER BY l.no)
     FROM invoice_lines l WHERE l.invoice_id = i.id),
  (SELECT jsonb_agg(jsonb_build_array(u.tenant_id, u.day, u.series_id, u.meter,
            u.price_version_no, u.quantity, u.amount)
            ORDER BY u.day, u.series_id, u.meter, u.price_version_no)
     FROM invoice_usage_meters u WHERE u.invoice_id = i.id)
) AS text), 'UTF8')), 'hex') AS digest FROM invoices i
"""
"""By id. To be narrowed by a condition on i."""

_DIGEST = text(f"{DIGESTS} WHERE i.id = :invoice")


async def digest_of(session: AsyncSession, row: InvoiceRow) -> str:
    """Of the invoice as it is now."""
    await session.flush()
    found = (await session.execute(_DIGEST, {"invoice": row.id})).one()
    return str(found.digest)
