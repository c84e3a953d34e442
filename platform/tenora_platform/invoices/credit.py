"""What of an invoice credit has paid: the ledger's word on the month, less what invoices before it
have shown."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.ledger.credits import USE, apply_credits
from tenora_platform.ledger.service import Ledger

_PAID = text(
    """
    SELECT coalesce((SELECT sum(e.amount)
              FROM ledger_entries e
              JOIN ledger_accounts a ON a.id = e.account_id
              JOIN ledger_transactions t ON t.id = e.transaction_id
             WHERE t.tenant_id = :tenant AND t.currency = :currency AND t.kind = :kind
               AND a.name = 'unbilled'), 0)
         - coalesce((SELECT sum(l.exact)
              FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id
             WHERE i.tenant_id = :tenant AND i.currency = :currency AND i.status = 'final'
               AND i.kind = 'invoice' AND l.kind = 'credit'), 0)
    """
)


async def credit_for(
    session: AsyncSession,
    ledger: Ledger,
    tenant_id: str,
    currencies: Iterable[str],
    *,
    until: datetime,
    now: datetime,
    keep: bool,
) -> dict[str, Decimal]:
    """By currency, what credit pays for of usage before `until` and no invoice has shown. It is in
    the ledger with this transaction if `keep`; else the ledger is left as it is, and so a draft
    says what the invoice would."""
    if keep:
        await apply_credits(session, ledger, tenant_id, until, now)
        return await _paid(session, tenant_id, currencies)
    async with session.begin_nested() as nested:
        await apply_credits(session, ledger, tenant_id, until, now)
        found = await _paid(session, tenant_id, currencies)
        await nested.rollback()
    return found


async def _paid(
    session: AsyncSession, tenant_id: str, currencies: Iterable[str]
) -> dict[str, Decimal]:
    found = {}
    for currency in currencies:
        values = {"tenant": tenant_id, "currency": currency, "kind": USE}
        found[currency] = -Decimal(await session.scalar(_PAID, values) or 0)
    return found
