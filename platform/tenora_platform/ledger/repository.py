"""Queries of the ledger. No decisions, no commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from sqlalchemy import ARRAY, Text, any_, func, insert, literal, select, tuple_
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.ledger.chain import Line
from tenora_platform.ledger.tables import (
    LedgerAccountRow,
    LedgerBalanceRow,
    LedgerEntryRow,
    LedgerTransactionRow,
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Of a tenant's transactions; None: any. `end` is not of them."""

    kind: str | None = None
    start: date | None = None
    end: date | None = None


async def last_of(session: AsyncSession, tenant_id: str) -> LedgerTransactionRow | None:
    query = (
        select(LedgerTransactionRow)
        .where(LedgerTransactionRow.tenant_id == tenant_id)
        .order_by(LedgerTransactionRow.seq.desc())
        .limit(1)
    )
    found: LedgerTransactionRow | None = await session.scalar(query)
    return found


async def find(
    session: AsyncSession, tenant_id: str, kind: str, reference: str
) -> LedgerTransactionRow | None:
    query = select(LedgerTransactionRow).where(
        LedgerTransactionRow.tenant_id == tenant_id,
        LedgerTransactionRow.kind == kind,
        LedgerTransactionRow.reference == reference,
    )
    found: LedgerTransactionRow | None = await session.scalar(query)
    return found


async def reversal_of(
    session: AsyncSession, row: LedgerTransactionRow
) -> LedgerTransactionRow | None:
    query = select(LedgerTransactionRow).where(
        LedgerTransactionRow.tenant_id == row.tenant_id, LedgerTransactionRow.reverses == row.id
    )
    found: LedgerTransactionRow | None = await session.scalar(query)
    return found


async def account_ids(
    session: AsyncSession, tenant_id: str, currency: str, names: Iterable[str]
) -> dict[str, int]:
    """By name; those that are not there yet are made."""
    wanted = sorted(set(names))
    query = select(LedgerAccountRow.name, LedgerAccountRow.id).where(
        LedgerAccountRow.tenant_id == tenant_id,
        LedgerAccountRow.currency == currency,
        LedgerAccountRow.name == any_(literal(wanted, ARRAY(Text))),
    )
    found: dict[str, int] = dict((await session.execute(query)).all())
    missing = [name for name in wanted if name not in found]
    if missing:
        made = await session.execute(
            insert(LedgerAccountRow)
            .values(
                [{"tenant_id": tenant_id, "name": each, "currency": currency} for each in missing]
            )
            .returning(LedgerAccountRow.name, LedgerAccountRow.id)
        )
        found |= dict(made.all())
    return found


async def add_entries(
    session: AsyncSession, row: LedgerTransactionRow, amounts: Sequence[tuple[int, Decimal]]
) -> None:
    """(account, amount) in order, and the balances moved by them."""
    await session.execute(
        insert(LedgerEntryRow),
        [
            {
                "transaction_id": row.id,
                "line": line,
                "tenant_id": row.tenant_id,
                "account_id": account,
                "amount": amount,
            }
            for line, (account, amount) in enumerate(amounts, 1)
        ],
    )
    moved = postgresql.insert(LedgerBalanceRow).values(
        [
            {"account_id": account, "tenant_id": row.tenant_id, "balance": amount, "entries": 1}
            for account, amount in sorted(amounts)
        ]
    )
    await session.execute(
        moved.on_conflict_do_update(
            index_elements=[LedgerBalanceRow.account_id],
            set_={
                "balance": LedgerBalanceRow.balance + moved.excluded.balance,
                "entries": LedgerBalanceRow.entries + moved.excluded.entries,
            },
        )
    )


async def lines_of(
    session: AsyncSession, transaction_ids: Sequence[str]
) -> Mapping[str, Sequence[Line]]:
    """The entries of these transactions, in order."""
    query = (
        select(
            LedgerEntryRow.transaction_id,
            LedgerEntryRow.line,
            LedgerAccountRow.name,
            LedgerAccountRow.currency,
            LedgerEntryRow.amount,
        )
        .join(LedgerAccountRow, LedgerAccountRow.id == LedgerEntryRow.account_id)
        .where(LedgerEntryRow.transaction_id == any_(literal(list(transaction_ids), ARRAY(Text))))
        .order_by(LedgerEntryRow.transaction_id, LedgerEntryRow.line)
    )
    found: dict[str, list[Line]] = defaultdict(list)
    for of, line, account, currency, amount in await session.execute(query):
        found[of].append(Line(line, account, currency, amount))
    return found


async def walk(
    session: AsyncSession, tenant_id: str | None, batch: int = 1000
) -> AsyncIterator[tuple[LedgerTransactionRow, Sequence[Line]]]:
    """Every transaction with its entries, tenant by tenant, by `seq`."""
    query = (
        select(LedgerTransactionRow)
        .order_by(LedgerTransactionRow.tenant_id, LedgerTransactionRow.seq)
        .limit(batch)
    )
    if tenant_id is not None:
        query = query.where(LedgerTransactionRow.tenant_id == tenant_id)
    where = query
    while True:
        rows = list(await session.scalars(where))
        lines = await lines_of(session, [row.id for row in rows])
        for row in rows:
            yield row, lines.get(row.id, ())
        if len(rows) < batch:
            return
        place = tuple_(LedgerTransactionRow.tenant_id, LedgerTransactionRow.seq)
        where = query.where(place > (rows[-1].tenant_id, rows[-1].seq))
        for row in rows:
            session.expunge(row)  # long books need not fit into memory


async def list_transactions(
    session: AsyncSession, tenant_id: str, chosen: Filter, *, after: str | None, limit: int
) -> list[LedgerTransactionRow]:
    """The last posted first; one more than `limit`. `after` is a transaction's id."""
    query = (
        select(LedgerTransactionRow)
        .where(LedgerTransactionRow.tenant_id == tenant_id)
        .order_by(LedgerTransactionRow.seq.desc())
        .limit(limit + 1)
    )
    if chosen.kind is not None:
        query = query.where(LedgerTransactionRow.kind == chosen.kind)
    if chosen.start is not None:
        query = query.where(LedgerTransactionRow.day >= chosen.start)
    if chosen.end is not None:
        query = query.where(LedgerTransactionRow.day < chosen.end)
    if after is not None:
        place = select(LedgerTransactionRow.seq).where(
            LedgerTransactionRow.tenant_id == tenant_id, LedgerTransactionRow.id == after
        )
        query = query.where(LedgerTransactionRow.seq < place.scalar_subquery())
    return list(await session.scalars(query))


async def balances(
    session: AsyncSession, tenant_id: str
) -> list[tuple[LedgerAccountRow, LedgerBalanceRow]]:
    """By currency and name."""
    query = (
        select(LedgerAccountRow, LedgerBalanceRow)
        .join(LedgerBalanceRow, LedgerBalanceRow.account_id == LedgerAccountRow.id)
        .where(LedgerAccountRow.tenant_id == tenant_id)
        .order_by(LedgerAccountRow.currency, LedgerAccountRow.name)
    )
    return [(account, balance) for account, balance in await session.execute(query)]


async def count_of_day(session: AsyncSession, tenant_id: str, kind: str, day: date) -> int:
    """How many there are that reverse nothing."""
    query = select(func.count()).where(
        LedgerTransactionRow.tenant_id == tenant_id,
        LedgerTransactionRow.kind == kind,
        LedgerTransactionRow.day == day,
        LedgerTransactionRow.reverses.is_(None),
    )
    return await session.scalar(query) or 0
