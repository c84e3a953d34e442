"""Whatever is done to the ledger's rows by hand, past triggers and keys, is found and named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from api_harness import ADMIN_KEY
from ledger_books import NOW, Books, new_books
from platform_fixtures import plain_url
from shell import Listening, run
from tenora_platform.db import Database, psycopg_url
from tenora_platform.ledger.service import Entry, Ledger
from tenora_platform.ledger.verify import problems

SECOND = "tenant_id = %(tenant)s and seq = 2"
OF_SECOND = f"transaction_id = (select id from ledger_transactions where {SECOND})"
LAST = "tenant_id = %(tenant)s and seq = 3"
OF_LAST = f"transaction_id = (select id from ledger_transactions where {LAST})"

IDS = "select id from ledger_transactions where tenant_id = :tenant"
TAMPERINGS = {
    "a transaction's kind": f"update ledger_transactions set kind = 'payment' where {SECOND}",
    "a reference": f"update ledger_transactions set reference = 'x' where {SECOND}",
    "a currency": f"update ledger_transactions set currency = 'EUR' where {SECOND}",
    "a day": f"update ledger_transactions set day = '2026-11-06' where {SECOND}",
    "a note": f"update ledger_transactions set note = 'x' where {SECOND}",
    "a time": f"update ledger_transactions set created_at = now() where {SECOND}",
    "what it reverses": f"update ledger_transactions set reverses = id where {SECOND}",
    "a hash": f"update ledger_transactions set hash = repeat('0', 64) where {SECOND}",
    "the hash before": f"update ledger_transactions set prev_hash = repeat('0', 64) where {SECOND}",
    "whose it is": f"update ledger_transactions set tenant_id = %(other)s where {SECOND}",
    "the order": f"update ledger_transactions set seq = 9 where {SECOND}; "
    f"update ledger_transactions set seq = 2 where {LAST}; "
    "update ledger_transactions set seq = 3 where tenant_id = %(tenant)s and seq = 9",
    "a place in the order": f"update ledger_transactions set seq = 9 where {SECOND}",
    "an amount": f"update ledger_entries set amount = amount * 2 where {OF_SECOND}",
    "an account of an entry": "update ledger_entries set account_id = (select id from "
    f"ledger_accounts where tenant_id = %(tenant)s and name = 'unbilled') where {OF_SECOND} "
    "and line = 1",
    "entries' order": f"update ledger_entries set line = 10 - line where {OF_SECOND}",
    "an entry's tenant": f"update ledger_entries set tenant_id = %(other)s where {OF_SECOND}",
    "an entry less": f"delete from ledger_entries where {OF_SECOND} and line = 1",
    "entries gone": f"delete from ledger_entries where {OF_SECOND}",
    "an entry more": "insert into ledger_entries select transaction_id, 7, tenant_id, account_id, "
    f"amount from ledger_entries where {OF_SECOND} and line = 1",
    "a transaction gone": f"delete from ledger_transactions where {SECOND}",
    "the last gone": f"delete from ledger_transactions where {LAST}",
    "the last gone with its entries": f"delete from ledger_entries where {OF_LAST}; "
    f"delete from ledger_transactions where {LAST}",
    "all gone": "delete from ledger_entries where tenant_id = %(tenant)s; "
    "delete from ledger_transactions where tenant_id = %(tenant)s",
    "a transaction more": "insert into ledger_transactions (id, tenant_id, seq, kind, reference, "
    "currency, day, created_at, prev_hash, hash) select id || 'x', tenant_id, 4, kind, 'x', "
    f"currency, day, created_at, hash, hash from ledger_transactions where {LAST}",
    "an account's name": "update ledger_accounts set name = 'tax' where tenant_id = %(tenant)s "
    "and name = 'cash'",
    "an account's currency": "update ledger_accounts set currency = 'EUR' "
    "where tenant_id = %(tenant)s and name = 'unbilled'",
    "a balance": "update ledger_balances set balance = 0 where tenant_id = %(tenant)s "
    "and balance > 0",
    "a balance's count": "update ledger_balances set entries = 0 where tenant_id = %(tenant)s",
    "a balance gone": "delete from ledger_balances where tenant_id = %(tenant)s",
}


@pytest.fixture(scope="module")
async def books(db: Database, ledger: Ledger) -> Books:
    """Of three transactions."""
    made = await new_books(db, ledger)
    for number, (first, second) in enumerate(
        (("unbilled", "revenue:output"), ("cash", "credit:bought"), ("credit:bought", "unbilled"))
    ):
        async with db.admin_session() as session:
            await ledger.post(
                session,
                made.tenant_id,
                kind="usage",
                reference=str(number),
                currency="USD",
                day=date(2026, 11, 5),
                entries=[Entry(first, Decimal(3)), Entry(second, Decimal(-3))],
                created_at=NOW,
            )
    return made


@pytest.fixture
async def unbound(database_url: str) -> AsyncIterator[AsyncSession]:
    """A superuser's transaction in which no trigger and no foreign key holds; never committed."""
    engine = create_async_engine(psycopg_url(database_url))
    async with AsyncSession(engine) as session:
        await session.execute(text("set session_replication_role = replica"))
        yield session
        await session.rollback()
    await engine.dispose()


async def test_as_posted_nothing_is_found(books: Books, unbound: AsyncSession) -> None:
    assert [each async for each in problems(unbound, books.ledger.chain)] == []


@pytest.fixture(scope="module")
async def other(db: Database, ledger: Ledger) -> Books:
    return await new_books(db, ledger)


@pytest.mark.parametrize("what", TAMPERINGS)
async def test_what_is_done_by_hand_is_named(
    books: Books, other: Books, ledger: Ledger, unbound: AsyncSession, what: str
) -> None:
    names = {"tenant": f"'{books.tenant_id}'", "other": f"'{other.tenant_id}'"}
    connection = await unbound.connection()
    await connection.exec_driver_sql(TAMPERINGS[what] % names)
    known = [books.tenant_id, *(f"{each}" for (each,) in await books.rows(IDS))]
    for whose in (books.tenant_id, None):
        found = [each async for each in problems(unbound, ledger.chain, whose)]
        assert found
        assert any(name in found[0] for name in known), found


def test_audit_verify_says_it(listening: Listening, database_url: str) -> None:
    where, admin = ("--url", listening.url), {"TENORA_ADMIN_KEY": ADMIN_KEY}
    code, shown = run("audit", "verify", *where, **admin)
    assert (code, "True" in shown) == (0, True), shown
    with psycopg.connect(plain_url(database_url), autocommit=True) as superuser:
        superuser.execute("set session_replication_role = replica")
        superuser.execute("update ledger_entries set amount = amount + 1 where amount > 0")
        superuser.execute("update ledger_balances set balance = 0 where balance > 0")
        code, shown = run("audit", "verify", *where, **admin)
        superuser.execute("update ledger_entries set amount = amount - 1 where amount > 0")
    assert code == 1
    assert shown.count("was changed after it was posted") == 3, shown
    assert "the balance of cash (USD)" in shown
