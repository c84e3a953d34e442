"""What of an invoice credit has paid: what grants paid of the usage until the month's end, less
what invoices before it have shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.rating import exact_sum
from tenora_platform.ledger.credits import Share, apply_credits
from tenora_platform.ledger.service import Ledger

_SHOWN = text(
    """
    SELECT coalesce(sum(l.exact), 0)
      FROM invoice_lines l JOIN invoices i ON i.id = l.invoice_id
     WHERE i.tenant_id = :tenant AND i.currency = :currency AND i.status = 'final'
       AND i.kind = 'invoice' AND l.kind = 'credit'
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
        shares = await apply_credits(session, ledger, tenant_id, until, now)
    else:
        async with session.begin_nested() as nested:
            shares = await apply_credits(session, ledger, tenant_id, until, now)
            await nested.rollback()
    return {
        currency: await _not_shown(session, tenant_id, currency, shares) for currency in currencies
    }


async def _not_shown(
    session: AsyncSession, tenant_id: str, currency: str, shares: Sequence[Share]
) -> Decimal:
    """Not what the ledger has of it: a grant that has expired since the month's end is there with
    all that it ever paid, of the month after as well."""
    paid = exact_sum(share.paid for share in shares if share.currency == currency)
    shown = await session.scalar(_SHOWN, {"tenant": tenant_id, "currency": currency})
    return max(exact_sum((paid, Decimal(shown or 0))), Decimal(0))
