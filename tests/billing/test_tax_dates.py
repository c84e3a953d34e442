"""Which tax a month's invoice has: that of the month's last day, whatever it is when it is made."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from invoice_books import OCTOBER, InvoiceBooks, new_invoice_books
from tenora_platform.db import Database
from tenora_platform.ledger.service import Ledger

DAY = date(2026, 11, 5)


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> InvoiceBooks:
    return await new_invoice_books(db, ledger)


async def test_a_month_has_the_tax_of_its_last_day(books: InvoiceBooks) -> None:
    """Whatever the tax is when the invoice is made. The first of all applies to what was before it,
    unless it was announced for later; one that is recorded for an earlier day corrects others."""
    change = "update billing_profiles set tax_rate = :rate, tax_since = :since"

    async def made() -> tuple[str | None, str]:
        (row,) = (await books.run(draft=True)).made
        return row.terms.get("tax_rate"), f"{row.tax:.2f}"

    await books.use(DAY, "100")
    later = datetime.now(UTC).date() + timedelta(days=400)
    await books.execute(
        "insert into billing_profiles (tenant_id, name, tax_name, tax_rate, tax_since) "
        "values (:tenant, 'Buyer', 'VAT', 30, :since)",
        since=later,
    )
    assert await made() == (None, "0.00"), "announced for later"
    month_after = DAY.replace(day=1) + timedelta(days=45)
    await books.execute(change, rate=Decimal(21), since=month_after)
    assert await made() == (None, "0.00")
    await books.execute(change, rate=Decimal(7), since=DAY)
    assert await made() == ("7", "7.00")


async def test_the_first_tax_was_only_recorded_late(books: InvoiceBooks) -> None:
    await books.use(date(2026, 10, 5), "100")
    await books.tax("19")
    (row,) = (await books.run(OCTOBER, draft=True)).made
    assert (row.terms["tax_rate"], f"{row.tax:f}") == ("19", "19.00")
