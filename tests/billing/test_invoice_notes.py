"""What follows on a final invoice: credit notes and payments, against its lines and the ledger."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from invoice_books import InvoiceBooks, new_invoice_books
from tenora_platform.db import Database
from tenora_platform.errors import ApiError, BadRequestError, ConflictError, NotFoundError
from tenora_platform.invoices.tables import InvoiceRow
from tenora_platform.ledger.service import Ledger

DAY = date(2026, 11, 5)


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> InvoiceBooks:
    return await new_invoice_books(db, ledger)


async def invoice(books: InvoiceBooks) -> InvoiceRow:
    """Lines 1 and 2 of 10.00 and 4.00, then 19% of tax."""
    await books.tax("19")
    await books.use(DAY, "4")
    await books.use(DAY, "10", "uncached_prefill")
    (row,) = (await books.run()).made
    return row


async def receivable(books: InvoiceBooks) -> Decimal:
    return (await books.books.totals()).get(("USD", "receivable"), Decimal(0))


async def test_parts_come_to_what_the_whole_would(books: InvoiceBooks) -> None:
    row = await invoice(books)
    assert row.total == Decimal("16.66")
    given = [await books.credit(row.id, {1: "3.33"}) for _ in range(3)]
    given += [await books.credit(row.id, {1: "0.01", 2: "4"})]
    assert sum(given) == row.total
    totals = await books.books.totals()
    assert {key[1]: amount for key, amount in totals.items()} == {}
    notes = await books.books.rows(
        "select number, of_invoice, total from invoices where kind = 'credit_note' "
        "and tenant_id = :tenant order by id"
    )
    assert [of for _, of, _ in notes] == [row.id] * 4
    counts = [int(number.removeprefix("CN-")) for number, _, _ in notes]
    assert counts == list(range(counts[0], counts[0] + 4))
    with pytest.raises(BadRequestError, match=r"Line 1 has only 0\.00 left"):
        await books.credit(row.id, {1: "0.01"})
    with pytest.raises(ConflictError) as caught:
        await books.void(row.id)
    assert caught.value.code == "invoice_is_settled"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({1: "10.01"}, "has only 10.00 left"),
        ({1: "0.001"}, "multiple of 0.01"),
        ({3: "1"}, "Line 3 is tax and cannot be credited"),
        ({7: "1"}, "Line 7 does not exist"),
    ],
)
async def test_what_cannot_be_credited(
    books: InvoiceBooks, lines: dict[int, str], message: str
) -> None:
    row = await invoice(books)
    with pytest.raises(BadRequestError, match=message):
        await books.credit(row.id, lines)
    assert await receivable(books) == row.total


async def test_no_more_than_the_invoice_is_credited(books: InvoiceBooks) -> None:
    await books.terms(included="8")
    row = await invoice(books)
    assert row.total == Decimal("7.14")
    with pytest.raises(BadRequestError) as caught:
        await books.credit(row.id, {1: "10"})
    assert caught.value.code == "more_than_the_invoice"
    assert await books.credit(row.id, {1: "6"}) == Decimal("7.14")
    assert await receivable(books) == 0


async def test_a_payment_is_noted_once_for_its_reference(books: InvoiceBooks) -> None:
    row = await invoice(books)
    first = await books.pay(row.id, "6.66", "pi_1")
    assert await books.pay(row.id, "6.66", "pi_1") == first
    with pytest.raises(ConflictError, match=r"is already recorded with 6\.66"):
        await books.pay(row.id, "1", "pi_1")
    with pytest.raises(BadRequestError, match=r"open amount of this invoice is 10\.00"):
        await books.pay(row.id, "10.01", "pi_2")
    await books.credit(row.id, {2: "4"})
    await books.pay(row.id, "5.24", "pi_3")
    totals = await books.books.totals()
    assert ("USD", "receivable") not in totals
    assert totals["USD", "cash"] == Decimal("11.90")
    assert await books.books.totals() == await books.books.balances()


async def test_only_final_invoices_are_settled(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    (draft,) = (await books.run(draft=True)).made
    errors: list[ApiError] = []
    for act in (
        books.void(draft.id),
        books.credit(draft.id, {1: "1"}),
        books.pay(draft.id, "1", "x"),
    ):
        with pytest.raises(ConflictError) as caught:
            await act
        errors.append(caught.value)
    assert {error.code for error in errors} == {"invoice_not_final"}
    with pytest.raises(NotFoundError):
        await books.void("invoice_none")
