"""What the operator may take back by hand: a posting that nothing else would make again or still
counts on. Everything else has a way of its own, which is named."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import ConflictError, NotFoundError
from tenora_platform.ledger import repository
from tenora_platform.ledger.service import Ledger, lock_money
from tenora_platform.ledger.tables import LedgerTransactionRow

REVERSIBLE = ("payment",)
"""Kinds. Of a payment whose posting is reversed, invoices no longer count anything."""

_INSTEAD = {
    "usage": (
        "It follows from the usage sums and would be posted again. Create a credit note instead."
    ),
    "credit": "It follows from usage and grants and would be posted again.",
    "lapse": "It follows from usage and grants and would be posted again.",
    "grant": "The grant itself would still be available to spend.",
    "invoice": "Void the invoice instead: POST /admin/v1/invoices/{id}/void.",
    "credit_note": "A credit note has a number and cannot be reversed.",
}


async def reverse_by_hand(
    session: AsyncSession,
    ledger: Ledger,
    audit: AuditLog,
    transaction_id: str,
    *,
    reason: str,
    actor: str,
) -> LedgerTransactionRow:
    """Its reversal; once more gives the one that is there. A session of the operator's. Raises
    NotFoundError; ConflictError for what is not reversed by hand."""
    row = await session.get(LedgerTransactionRow, transaction_id)
    if row is None:
        raise NotFoundError(f"There is no transaction {transaction_id[:80]!r}.")
    if row.reverses is not None or row.kind not in REVERSIBLE:
        why = _INSTEAD.get(row.kind, "") if row.reverses is None else "It is already a reversal."
        raise ConflictError(
            f"A posting of kind {row.kind!r} cannot be reversed by hand. {why}".rstrip(),
            code="not_reversible",
        )
    await lock_money(session, row.tenant_id)
    found = await repository.reversal_of(session, row)
    if found is not None:
        return found
    reversal = await ledger.reverse(session, row, note=reason)
    await audit.append(
        session,
        actor=actor,
        action="ledger.reverse",
        target=row.id,
        tenant_id=row.tenant_id,
        after={"reversal": reversal.id, "kind": row.kind, "of": row.reference, "reason": reason},
    )
    return reversal
