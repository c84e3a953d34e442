"""Queries of the days whose usage has moved since the ledger last had it, and of what the sums and
the ledger have of a day. No decisions, no commits."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from sqlalchemy import delete, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.tables import PriceVersionRow
from tenora_platform.ledger.accounts import revenue
from tenora_platform.ledger.tables import (
    LedgerAccountRow,
    LedgerDueRow,
    LedgerEntryRow,
    LedgerTransactionRow,
)
from tenora_platform.usage.sums import AMOUNTS
from tenora_platform.usage.tables import UsageDayRow

Amounts = dict[tuple[str, str], Decimal]
"""By (currency, account of revenue); above 0."""


async def days_due(
    session: AsyncSession, *, today: date, before: datetime, limit: int
) -> list[tuple[str, date]]:
    """(tenant, day) marked: days that have ended, and those that run unless they were posted since
    `before`. The longest waiting first."""
    lately = exists().where(
        LedgerTransactionRow.tenant_id == LedgerDueRow.tenant_id,
        LedgerTransactionRow.kind == "usage",
        LedgerTransactionRow.day == LedgerDueRow.day,
        LedgerTransactionRow.created_at > before,
    )
    query = (
        select(LedgerDueRow.tenant_id, LedgerDueRow.day)
        .where(or_(LedgerDueRow.day < today, ~lately))
        .order_by(LedgerDueRow.since, LedgerDueRow.tenant_id, LedgerDueRow.day)
        .limit(limit)
    )
    return [(tenant_id, day) for tenant_id, day in await session.execute(query)]


async def days_of(session: AsyncSession, tenant_id: str) -> list[date]:
    """In the order in which they are locked by whoever adds to the sums."""
    query = (
        select(LedgerDueRow.day)
        .where(LedgerDueRow.tenant_id == tenant_id)
        .order_by(LedgerDueRow.day)
    )
    return list(await session.scalars(query))


async def mark(session: AsyncSession, tenant_id: str, day: date) -> None:
    """Have the day posted anew. Locks the mark until the transaction ends."""
    row = insert(LedgerDueRow).values(tenant_id=tenant_id, day=day)
    await session.execute(
        row.on_conflict_do_update(
            index_elements=[LedgerDueRow.tenant_id, LedgerDueRow.day], set_={"since": func.now()}
        )
    )


async def take_mark(session: AsyncSession, tenant_id: str, day: date) -> bool:
    """Whether there was one."""
    taken = (
        delete(LedgerDueRow)
        .where(LedgerDueRow.tenant_id == tenant_id, LedgerDueRow.day == day)
        .returning(LedgerDueRow.day)
    )
    return await session.scalar(taken) is not None


async def sums_of(session: AsyncSession, tenant_id: str, day: date) -> Amounts:
    """What the day's usage has cost so far, by the sums. What waits for a price is not in it."""
    costs = [func.sum(getattr(UsageDayRow, column)) for column in AMOUNTS.values()]
    query = (
        select(PriceVersionRow.currency, *costs)
        .join(PriceVersionRow, PriceVersionRow.no == UsageDayRow.price_version_no)
        .where(UsageDayRow.tenant_id == tenant_id, UsageDayRow.day == day)
        .group_by(PriceVersionRow.currency)
    )
    return {
        (currency, revenue(meter)): amount
        for currency, *amounts in await session.execute(query)
        for meter, amount in zip(AMOUNTS, amounts, strict=True)
        if amount
    }


async def posted_of(session: AsyncSession, tenant_id: str, kind: str, day: date) -> Amounts:
    """What the ledger has of it, reversals counted."""
    query = (
        select(LedgerAccountRow.currency, LedgerAccountRow.name, func.sum(LedgerEntryRow.amount))
        .join(LedgerEntryRow, LedgerEntryRow.account_id == LedgerAccountRow.id)
        .join(LedgerTransactionRow, LedgerTransactionRow.id == LedgerEntryRow.transaction_id)
        .where(
            LedgerTransactionRow.tenant_id == tenant_id,
            LedgerTransactionRow.kind == kind,
            LedgerTransactionRow.day == day,
            LedgerAccountRow.name.startswith("revenue:"),
        )
        .group_by(LedgerAccountRow.currency, LedgerAccountRow.name)
    )
    found = await session.execute(query)
    return {(currency, account): -amount for currency, account, amount in found}
