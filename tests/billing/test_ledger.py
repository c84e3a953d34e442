"""Posting: once, balanced, without gaps, append-only; and the database refuses what is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ledger_books import NOW, Books, new_books
from platform_fixtures import Connection, Servers, plain_url
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.balances import compare_balances, rebuild_balances
from tenora_platform.ledger.service import Entry, Ledger, LedgerError, PostedOtherwiseError
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.ledger.verify import problems

DAY = date(2026, 11, 5)


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> Books:
    return await new_books(db, ledger)


def entries(*amounts: str, accounts: tuple[str, ...] = ("unbilled", "revenue:output")) -> Any:
    return [Entry(name, Decimal(amount)) for name, amount in zip(accounts, amounts, strict=False)]


async def post(
    books: Books, reference: str, amount: str = "1", **more: Any
) -> LedgerTransactionRow:
    values: dict[str, Any] = {"kind": "usage", "currency": "USD", "day": DAY, "created_at": NOW}
    values |= {"entries": entries(amount, f"-{amount}")} | more
    async with books.db.admin_session() as session:
        return await books.ledger.post(session, books.tenant_id, reference=reference, **values)


async def found(books: Books) -> list[str]:
    async with books.db.admin_session() as session:
        return [each async for each in problems(session, books.ledger.chain, books.tenant_id)]


async def test_the_same_again_is_posted_once(books: Books) -> None:
    first = await post(books, "a", "1.5")
    assert (await post(books, "a", "1.5")).id == first.id
    others: list[dict[str, Any]] = [
        {"amount": "2"},
        {"day": date(2026, 11, 6)},
        {"currency": "EUR"},
    ]
    for other in others:
        with pytest.raises(PostedOtherwiseError, match="is already posted as"):
            await post(books, "a", **({"amount": "1.5"} | other))
    second = await post(books, "b", "0.000000000001")
    assert await books.transactions() == [(1, "usage", "a"), (2, "usage", "b")]
    assert second.prev_hash == first.hash
    assert (
        await books.balances()
        == await books.totals()
        == {
            ("USD", "unbilled"): Decimal("1.500000000001"),
            ("USD", "revenue:output"): Decimal("-1.500000000001"),
        }
    )
    assert await found(books) == []


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        (("1", "-0.999999999999"), "add up to"),
        (("1",), "add up to"),
        ((), "needs at least two entries"),
        (("0", "0"), "needs at least two entries"),
        (("0.0000000000001", "-0.0000000000001"), "does not fit"),
        (("1e26", "-1e26"), "does not fit"),
        (("NaN", "NaN"), "does not fit"),
    ],
)
async def test_what_is_no_posting_is_refused(
    books: Books, amounts: tuple[str, ...], said: str
) -> None:
    with pytest.raises(LedgerError, match=said):
        await post(books, "odd", entries=entries(*amounts))
    with pytest.raises(ValueError, match="not an account"):
        await post(books, "odd", entries=entries("1", "-1", accounts=("unbilled", "elsewhere")))
    assert await books.transactions() == []


async def test_entries_of_one_account_become_one(books: Books) -> None:
    accounts = ("unbilled", "revenue:output", "unbilled", "revenue:cold_load")
    await post(books, "a", entries=entries("2", "-3", "1", "0", accounts=accounts))
    assert await books.rows("select count(*) from ledger_entries where tenant_id = :tenant") == [
        (2,)
    ]


async def test_a_reversal_takes_back_once(books: Books) -> None:
    first = await post(books, "a", "7")

    async def reverse(row: LedgerTransactionRow) -> LedgerTransactionRow:
        async with books.db.admin_session() as session:
            return await books.ledger.reverse(session, row, note="wrong")

    back = await reverse(first)
    assert (await reverse(first)).id == back.id
    assert (back.kind, back.day, back.reverses) == (first.kind, first.day, first.id)
    with pytest.raises(LedgerError, match="is a reversal"):
        await reverse(back)
    assert await books.totals() == await books.balances() == {}
    assert await found(books) == []


async def test_posted_at_once_the_chain_has_no_gap(books: Books) -> None:
    """Of twenty, half of them the same ones."""
    await asyncio.gather(*(post(books, str(number % 10)) for number in range(20)))
    assert [seq for seq, _, _ in await books.transactions()] == list(range(1, 11))
    assert (await books.totals())["USD", "unbilled"] == 10
    assert await found(books) == []


async def test_balances_are_made_anew(books: Books, owner: Connection) -> None:
    await post(books, "a", "3")
    right = await books.balances()
    change = "update ledger_balances set balance = balance + 1 where tenant_id = %s"
    owner.execute(change, [books.tenant_id])
    async with books.db.admin_session() as session:
        wrong = await compare_balances(session, books.tenant_id)
        assert {(each.account, each.balance - each.total) for each in wrong} == {
            ("unbilled", Decimal(1)),
            ("revenue:output", Decimal(1)),
        }
        await rebuild_balances(session, books.tenant_id)
    assert await books.balances() == right
    assert await found(books) == []


TRANSACTION = """
    insert into ledger_transactions
    (id, tenant_id, seq, kind, reference, currency, day, created_at, prev_hash, hash)
    values (%(id)s, %(tenant)s, %(seq)s, 'usage', %(id)s, 'USD', '2026-11-05', now(), '', '')
"""
ENTRY = """
    insert into ledger_entries (transaction_id, line, tenant_id, account_id, amount)
    values (%(id)s, %(line)s, %(tenant)s, %(account)s, %(amount)s)
"""


@pytest.fixture(params=["owner", "admin"])
def writer(
    request: pytest.FixtureRequest, servers: Servers, database_url: str
) -> Iterator[Connection]:
    url = getattr(database_urls(database_url, servers.secret, DEFAULT), request.param)
    with psycopg.connect(plain_url(url.render_as_string(hide_password=False))) as connection:
        yield connection


class Handwritten:
    """Rows by hand, in one database transaction."""

    def __init__(self, connection: Connection, tenant_id: str) -> None:
        self.connection = connection
        self.tenant_id = tenant_id
        self.id = f"txn_{tenant_id}"

    def account(self, name: str, currency: str = "USD", tenant: str | None = None) -> int:
        row = self.connection.execute(
            "insert into ledger_accounts (tenant_id, name, currency) values (%s, %s, %s) "
            "returning id",
            [tenant or self.tenant_id, name, currency],
        ).fetchone()
        assert row is not None
        return int(row[0])

    def transaction(self) -> None:
        self.connection.execute(TRANSACTION, {"id": self.id, "tenant": self.tenant_id, "seq": 1})

    def entry(self, line: int, account: int, amount: str, tenant: str | None = None) -> None:
        values = {"id": self.id, "line": line, "tenant": tenant or self.tenant_id}
        self.connection.execute(ENTRY, {**values, "account": account, "amount": amount})


async def test_by_hand_only_what_balances_can_be_committed(
    books: Books, db: Database, ledger: Ledger, writer: Connection
) -> None:
    """As the owner and as the operator's role, past all of our code."""
    other = await new_books(db, ledger)
    hand = Handwritten(writer, books.tenant_id)

    def alone() -> None:
        hand.transaction()

    def one_entry() -> None:
        hand.transaction()
        hand.entry(1, hand.account("unbilled"), "1")

    def unbalanced() -> None:
        one_entry()
        hand.entry(2, hand.account("revenue:output"), "-0.999999999999")

    def of_another_tenant() -> None:
        one_entry()
        hand.entry(2, hand.account("revenue:output", tenant=other.tenant_id), "-1")

    def in_another_currency() -> None:
        one_entry()
        hand.entry(2, hand.account("revenue:output", "EUR"), "-1")

    for wrong in (alone, one_entry, unbalanced, of_another_tenant, in_another_currency):
        wrong()
        with pytest.raises(psycopg.errors.CheckViolation, match="does not balance"):
            writer.commit()
        writer.rollback()
    one_entry()
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        hand.entry(2, hand.account("cash", tenant=other.tenant_id), "-1", tenant=other.tenant_id)
    writer.rollback()
    assert await books.transactions() == []

    one_entry()
    hand.entry(2, hand.account("revenue:output"), "-1")
    writer.commit()
    hand.entry(3, hand.account("cash"), "5")  # to what is there already
    with pytest.raises(psycopg.errors.CheckViolation, match="does not balance"):
        writer.commit()
    writer.rollback()
    assert len(await books.transactions()) == 1


async def test_who_shadows_the_tables_is_refused_all_the_same(
    books: Books, writer: Connection
) -> None:
    """The check looks at the ledger, and not at a table of its name that the writer made."""
    hand = Handwritten(writer, books.tenant_id)
    for table in ("transactions", "entries", "accounts"):
        name = f"ledger_{table}"
        writer.execute(f"create temp table {name} as select * from {name} limit 0".encode())
    writer.execute(f"set search_path = {DEFAULT.schema}, pg_temp; select 1".encode())
    hand.transaction()
    hand.entry(1, hand.account("unbilled"), "1")
    writer.execute(f"set search_path = pg_temp, {DEFAULT.schema}".encode())
    hand.transaction()
    account = writer.execute(
        "insert into ledger_accounts values (1, %s, 'cash', 'USD') returning id", [books.tenant_id]
    ).fetchone()
    assert account is not None
    hand.entry(1, 1, "1")
    hand.entry(2, 1, "-1")
    with pytest.raises(psycopg.errors.CheckViolation, match="does not balance"):
        writer.commit()


@pytest.mark.parametrize("role", ["app", "admin", "owner"])
async def test_nobody_changes_what_is_posted(
    books: Books, servers: Servers, database_url: str, role: str
) -> None:
    await post(books, "a")
    url = getattr(database_urls(database_url, servers.secret, DEFAULT), role)
    text = plain_url(url.render_as_string(hide_password=False))
    with psycopg.connect(text, autocommit=True) as connection:
        connection.execute("select set_config('app.tenant', %s, false)", [books.tenant_id])
        for table, column in (
            ("ledger_transactions", "note"),
            ("ledger_entries", "amount"),
            ("ledger_accounts", "name"),
        ):
            for statement in (
                f"update {table} set {column} = {column}",
                f"delete from {table}",
                f"truncate {table} cascade",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
        if role == "app":
            assert connection.execute("select count(*) from ledger_entries").fetchone() == (2,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("insert into ledger_balances values (1, 'x', 0, 0)")
