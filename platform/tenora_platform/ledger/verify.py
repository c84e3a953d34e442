"""Walks the ledger and says what is not as it was posted: a transaction or entry that was changed,
taken out, put in or moved, and balances that are off. It mends nothing."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.ledger import repository
from tenora_platform.ledger.balances import compare_balances
from tenora_platform.ledger.chain import GENESIS, Chain
from tenora_platform.ledger.tables import LedgerEntryRow, LedgerTransactionRow


async def problems(
    session: AsyncSession, chain: Chain, tenant_id: str | None = None
) -> AsyncIterator[str]:
    """Of one tenant's books or of all, each named; none if they are as they were posted. What
    follows on a transaction that is missing is compared with what is there."""
    expected: dict[str, tuple[int, str]] = {}
    async for row, lines in repository.walk(session, tenant_id):
        seq, previous = expected.get(row.tenant_id, (1, GENESIS))
        where = f"ledger transaction {row.seq} ({row.id}) of {row.tenant_id}"
        if row.seq != seq:
            yield f"ledger transaction {seq} of {row.tenant_id} is missing: found {row.seq}"
        elif row.prev_hash != previous:
            yield f"{where} does not match the hash of the transaction before it"
        if not hmac.compare_digest(row.hash, chain.hash_of(row, lines)):
            yield f"{where} or one of its entries was changed after it was posted"
        expected[row.tenant_id] = (row.seq + 1, row.hash)
    async for found in _orphans(session, tenant_id):
        yield found
    # The end of a chain has nothing after it that would miss it; the balances do.
    for each in await compare_balances(session, tenant_id):
        yield str(each)


async def _orphans(session: AsyncSession, tenant_id: str | None) -> AsyncIterator[str]:
    """Entries whose transaction, or whose transaction's tenant, is another."""
    query = (
        select(LedgerEntryRow.transaction_id, LedgerEntryRow.line, LedgerEntryRow.tenant_id)
        .where(
            ~exists().where(
                LedgerTransactionRow.id == LedgerEntryRow.transaction_id,
                LedgerTransactionRow.tenant_id == LedgerEntryRow.tenant_id,
            )
        )
        .order_by(LedgerEntryRow.transaction_id, LedgerEntryRow.line)
        .limit(20)
    )
    if tenant_id is not None:
        query = query.where(LedgerEntryRow.tenant_id == tenant_id)
    for transaction, line, of in await session.execute(query):
        yield f"ledger entry {line} of transaction {transaction} of {of} belongs to no transaction"
