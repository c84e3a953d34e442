"""Balances as a projection of entries: made anew from them, and compared with them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Select, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.ledger.service import lock_money
from tenora_platform.ledger.tables import LedgerAccountRow, LedgerBalanceRow, LedgerEntryRow


@dataclass(frozen=True, slots=True)
class Difference:
    """A balance that is not what its entries add up to."""

    tenant_id: str
    account: str
    currency: str
    balance: Decimal
    balance_entries: int  # how many it says that it has
    total: Decimal
    entries: int

    def __str__(self) -> str:
        return (
            f"the balance of {self.account} ({self.currency}) of {self.tenant_id} is "
            f"{self.balance:f} over {self.balance_entries} entries, but its {self.entries} "
            f"entries add up to {self.total:f}"
        )


def _totals(tenant_id: str | None) -> Select[int, str, Decimal, int]:
    query = select(
        LedgerEntryRow.account_id,
        func.min(LedgerEntryRow.tenant_id).label("tenant_id"),
        func.sum(LedgerEntryRow.amount).label("total"),
        func.count().label("entries"),
    ).group_by(LedgerEntryRow.account_id)
    return query if tenant_id is None else query.where(LedgerEntryRow.tenant_id == tenant_id)


async def compare_balances(
    session: AsyncSession, tenant_id: str | None = None, limit: int = 20
) -> list[Difference]:
    """Of one tenant or of all, the first `limit`; none if every balance is right."""
    totals = _totals(tenant_id).subquery()
    total = func.coalesce(totals.c.total, 0)
    entries = func.coalesce(totals.c.entries, 0)
    balance = func.coalesce(LedgerBalanceRow.balance, 0)
    counted = func.coalesce(LedgerBalanceRow.entries, 0)
    query = (
        select(
            LedgerAccountRow.tenant_id,
            LedgerAccountRow.name,
            LedgerAccountRow.currency,
            balance,
            counted,
            total,
            entries,
        )
        .outerjoin(LedgerBalanceRow, LedgerBalanceRow.account_id == LedgerAccountRow.id)
        .outerjoin(totals, totals.c.account_id == LedgerAccountRow.id)
        .where(
            or_(
                balance != total,
                counted != entries,
                LedgerBalanceRow.tenant_id != LedgerAccountRow.tenant_id,
            )
        )
        .order_by(LedgerAccountRow.tenant_id, LedgerAccountRow.currency, LedgerAccountRow.name)
        .limit(limit)
    )
    if tenant_id is not None:
        query = query.where(LedgerAccountRow.tenant_id == tenant_id)
    return [Difference(*found) for found in await session.execute(query)]


async def rebuild_balances(session: AsyncSession, tenant_id: str) -> None:
    """One tenant's, while nobody posts. A session of the operator's."""
    await lock_money(session, tenant_id)
    await session.execute(delete(LedgerBalanceRow).where(LedgerBalanceRow.tenant_id == tenant_id))
    await session.execute(
        insert(LedgerBalanceRow).from_select(
            ["account_id", "tenant_id", "balance", "entries"], _totals(tenant_id)
        )
    )
