"""Queries of the ledger. No decisions, no commits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from sqlalchemy import ARRAY, Text, any_, func, insert, literal, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform import paging
from tenora_platform.ledger.chain import Line
from tenora_platform.ledger.tables import (
    LedgerAccountRow,
    LedgerBalanceRow,
    LedgerEntryRow,
    LedgerTransactionRow,
)
from tenora_platform.tenants.tables import TenantRow


@dataclass(frozen=True, slots=True)
class Filter:
    """Of a tenant's transactions; None: any. `end` is not of them."""

    kind: str | None = None
    start: date | None = None
    end: date | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a posting comes: after which transaction (0 and "": none), unless it is there
    (`found`); and its accounts by name, as far as there are any."""

    seq: int
    hash: str
    found: str | None
    accounts: dict[str, int]


_PLACE = text(
    """
    SELECT last.seq, last.hash,
           (SELECT id FROM ledger_transactions
             WHERE tenant_id = :tenant AND kind = :kind AND reference = :reference),
           (SELECT jsonb_object_agg(name, id) FROM ledger_accounts
             WHERE tenant_id = :tenant AND currency = :currency
               AND name = any(CAST(:names AS text[])))
      FROM (SELECT) AS one LEFT JOIN LATERAL
           (SELECT seq, hash FROM ledger_transactions
             WHERE tenant_id = :tenant ORDER BY seq DESC LIMIT 1) AS last ON true
    """
)
_ADD = text(
    """
    WITH txn AS (
      INSERT INTO ledger_transactions (id, tenant_id, seq, kind, reference, currency, day, reverses,
                                       note, created_at, prev_hash, hash)
      VALUES (:id, :tenant_id, :seq, :kind, :reference, :currency, :day, :reverses, :note,
              :created_at, :prev_hash, :hash)
    ), moved AS (
      INSERT INTO ledger_balances AS old (account_id, tenant_id, balance, entries)
      SELECT account, :tenant_id, amount, 1
        FROM unnest(CAST(:accounts AS integer[]), CAST(:amounts AS numeric[]))
             AS e (account, amount)
      ON CONFLICT (account_id) DO UPDATE
      SET balance = old.balance + excluded.balance, entries = old.entries + 1
    )
    INSERT INTO ledger_entries (transaction_id, line, tenant_id, account_id, amount)
    SELECT :id, line, :tenant_id, account, amount
      FROM unnest(CAST(:accounts AS integer[]), CAST(:amounts AS numeric[]))
           WITH ORDINALITY AS e (account, amount, line)
    """
)
_COLUMNS = tuple(column.key for column in LedgerTransactionRow.__table__.columns)


async def place_of(session: AsyncSession, row: LedgerTransactionRow, names: Sequence[str]) -> Place:
    """Of a posting to these accounts; asked under the tenant's lock."""
    values = {
        "tenant": row.tenant_id,
        "kind": row.kind,
        "reference": row.reference,
        "currency": row.currency,
        "names": list(names),
    }
    seq, hash_, found, accounts = (await session.execute(_PLACE, values)).one()
    return Place(seq or 0, hash_ or "", found, accounts or {})


async def add_accounts(
    session: AsyncSession, tenant_id: str, currency: str, names: Sequence[str]
) -> dict[str, int]:
    """By name; none of them may be there."""
    made = await session.execute(
        insert(LedgerAccountRow)
        .values([{"tenant_id": tenant_id, "name": each, "currency": currency} for each in names])
        .returning(LedgerAccountRow.name, LedgerAccountRow.id)
    )
    return dict(made.all())


async def add_transaction(
    session: AsyncSession, row: LedgerTransactionRow, amounts: Sequence[tuple[int, Decimal]]
) -> None:
    """With its entries, (account, amount) in order, and the balances they move: one statement."""
    values = {name: getattr(row, name) for name in _COLUMNS}
    entries = {
        "accounts": [account for account, _ in amounts],
        "amounts": [amount for _, amount in amounts],
    }
    await session.execute(_ADD, values | entries)


async def reversal_of(
    session: AsyncSession, row: LedgerTransactionRow
) -> LedgerTransactionRow | None:
    query = select(LedgerTransactionRow).where(
        LedgerTransactionRow.tenant_id == row.tenant_id, LedgerTransactionRow.reverses == row.id
    )
    found: LedgerTransactionRow | None = await session.scalar(query)
    return found


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


@dataclass(frozen=True, slots=True)
class Accounts:
    """All tenants' accounts of one name that are not at 0. `q`: a part of the tenant's name or
    id."""

    name: str
    q: str | None = None
    sort: str = "-balance"


AccountOf = tuple[LedgerAccountRow, LedgerBalanceRow, str]
"""An account, what it comes to, and its tenant's name."""


async def page_of_accounts(
    session: AsyncSession, chosen: Accounts, *, after: str | None, limit: int
) -> list[AccountOf]:
    """By currency, and in it by balance; one more than `limit`. `after` is an account's id."""
    key = func.row(LedgerAccountRow.currency, LedgerBalanceRow.balance)
    _, descending = paging.split(chosen.sort)
    place = (
        _accounts(select(key), Accounts(chosen.name))
        .where(LedgerAccountRow.id.cast(Text) == after)
        .scalar_subquery()
    )
    query = _accounts(select(LedgerAccountRow, LedgerBalanceRow, TenantRow.name), chosen)
    order = paging.Order(key, LedgerAccountRow.id.cast(Text), descending, place)
    rows = await session.execute(paging.page(query, order, after=after, limit=limit))
    return [(account, balance, name) for account, balance, name in rows]


async def totals_of_accounts(session: AsyncSession, chosen: Accounts) -> dict[str, Decimal]:
    """By currency, over all pages."""
    query = _accounts(select(LedgerAccountRow.currency, func.sum(LedgerBalanceRow.balance)), chosen)
    query = query.group_by(LedgerAccountRow.currency).order_by(LedgerAccountRow.currency)
    return dict((await session.execute(query)).all())


def _accounts(query: paging.Rows, chosen: Accounts) -> paging.Rows:
    return (
        query.select_from(LedgerAccountRow)
        .join(LedgerBalanceRow, LedgerBalanceRow.account_id == LedgerAccountRow.id)
        .join(TenantRow, TenantRow.id == LedgerAccountRow.tenant_id)
        .where(LedgerAccountRow.name == chosen.name, LedgerBalanceRow.balance != 0)
        .where(*paging.having(chosen.q, TenantRow.name, TenantRow.id))
    )


async def count_of_day(session: AsyncSession, tenant_id: str, kind: str, day: date) -> int:
    """How many there are that reverse nothing."""
    query = select(func.count()).where(
        LedgerTransactionRow.tenant_id == tenant_id,
        LedgerTransactionRow.kind == kind,
        LedgerTransactionRow.day == day,
        LedgerTransactionRow.reverses.is_(None),
    )
    return await session.scalar(query) or 0
