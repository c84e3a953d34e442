"""Runs: whatever is late, void, run twice, at once or broken off, all that was used is on one
invoice, numbers have no gaps, and the ledger says what the invoices say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from api_harness import Api
from invoice_books import (
    AFTER_GRACE,
    DECEMBER,
    IN_GRACE,
    IN_JANUARY,
    NOVEMBER,
    OCTOBER,
    InvoiceBooks,
    new_invoice_books,
    runs_at,
)
from tenora_platform.db import Database
from tenora_platform.errors import BadRequestError, ConflictError
from tenora_platform.invoices.making import Maker
from tenora_platform.invoices.runs import Wanted
from tenora_platform.invoices.worker import InvoiceWorker
from tenora_platform.ledger.service import Ledger

DAY = date(2026, 11, 5)


@pytest.fixture
async def books(db: Database, ledger: Ledger) -> InvoiceBooks:
    return await new_invoice_books(db, ledger)


async def unbilled(books: InvoiceBooks) -> Decimal:
    return (await books.books.totals()).get(("USD", "unbilled"), Decimal(0))


async def numbers(db: Database) -> list[int]:
    async with db.admin_session() as session:
        found = await session.scalars(
            text("select number from invoices where kind = 'invoice' and number is not null")
        )
    return sorted(int(number.removeprefix("INV-")) for number in found)


async def test_a_month_becomes_final(books: InvoiceBooks) -> None:
    await books.terms(minimum="20", included="5")
    await books.tax("19")
    await books.use(date(2026, 10, 31), "3")
    await books.use(DAY, "10.123456789012")
    await books.use(DECEMBER, "7")  # not November's
    report = await books.run()
    (row,) = report.made
    assert (row.status, row.kind, row.period) == ("final", "invoice", NOVEMBER)
    assert row.due_at is not None
    assert (row.due_at - AFTER_GRACE).days == 14
    assert await books.lines(row.id) == [
        ("usage", "2026-11", Decimal("10.12")),
        ("adjustment", "2026-10", Decimal("3.00")),
        ("included", "2026-11", Decimal("-5.00")),
        ("included", "2026-10", Decimal("-3.00")),
        ("minimum", "2026-11", Decimal("14.88")),
        ("tax", None, Decimal("3.80")),
    ]
    assert (row.subtotal, row.total) == (Decimal("20.00"), Decimal("23.80"))
    assert await books.books.totals() == {
        ("USD", "receivable"): Decimal("23.80"),
        ("USD", "unbilled"): Decimal(7),
        ("USD", "revenue:output"): Decimal("-20.123456789012"),
        ("USD", "revenue:included"): Decimal(8),
        ("USD", "revenue:minimum"): Decimal("-14.88"),
        ("USD", "tax"): Decimal("-3.80"),
        ("USD", "rounding"): Decimal("0.003456789012"),
    }
    assert await books.books.totals() == await books.books.balances()
    events = await books.books.rows("select type, data from events where tenant_id = :tenant")
    assert [(type_, data["id"], data["total"]) for type_, data in events] == [
        ("invoice.final", row.id, "23.80")
    ]


async def test_what_is_late_comes_with_the_next(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    await books.run()
    await books.use(DAY, "0.25")
    await books.use(OCTOBER, "0.50", "stored")
    await books.use(date(2026, 12, 31), "2")
    (row,) = (await books.run(DECEMBER, at=IN_JANUARY)).made
    assert await books.lines(row.id) == [
        ("usage", "2026-12", Decimal("2.00")),
        ("adjustment", "2026-10", Decimal("0.50")),
        ("adjustment", "2026-11", Decimal("0.25")),
    ]
    assert await unbilled(books) == 0
    days = await books.books.rows(
        "select day, meter, amount from invoice_usage_meters where invoice_id = :id order by 1, 2",
        id=row.id,
    )
    assert [(str(day), meter, amount) for day, meter, amount in days] == [
        ("2026-10-01", "stored", Decimal("0.50")),
        ("2026-11-05", "output", Decimal("0.25")),
        ("2026-12-31", "output", Decimal(2)),
    ]


async def test_when_a_month_is_final(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    for at, draft, status in (
        (IN_GRACE, None, "draft"),
        (IN_GRACE, True, "draft"),
        (AFTER_GRACE, True, "draft"),
        (IN_GRACE, False, "final"),
    ):
        (row,) = (await books.run(at=at, draft=draft)).made
        assert row.status == status
    with pytest.raises(ConflictError) as caught:
        await books.run(DECEMBER, draft=False)
    assert caught.value.code == "period_not_over"
    with pytest.raises(BadRequestError, match="has not started yet"):
        await books.run(date(2027, 2, 1), draft=True)
    assert (await books.run(NOVEMBER, at=IN_JANUARY)).made == []


async def test_a_draft_is_made_anew_and_moves_nothing(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    (first,) = (await books.run(draft=True)).made
    await books.use(DAY, "2")
    (second,) = (await books.run(draft=True)).made
    assert (first.id, first.total, second.total) == (second.id, Decimal(1), Decimal(3))
    assert await unbilled(books) == 3
    assert await books.books.rows("select 1 from events where tenant_id = :tenant") == []
    (final,) = (await books.run()).made
    assert (final.id, final.total) == (first.id, Decimal(3))
    assert await unbilled(books) == 0
    assert len(await books.invoices()) == 1


async def test_a_run_again_changes_nothing(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    await books.run()
    before = (await books.invoices(), await books.books.transactions())
    await books.use(DAY, "5")
    report = await books.run()
    assert (report.made, report.unchanged, report.empty) == ([], 1, 0)
    report = await books.run(draft=True)
    assert (report.made, report.unchanged) == ([], 1)
    invoices, posted = await books.invoices(), await books.books.transactions()
    assert invoices == before[0]
    assert [each for each in posted if each[1] != "usage"] == [
        each for each in before[1] if each[1] != "usage"
    ]


async def test_two_runs_at_once_make_each_invoice_once(db: Database, ledger: Ledger) -> None:
    tenants = [await new_invoice_books(db, ledger) for _ in range(6)]
    for each in tenants:
        await each.use(DAY, "1.5")
    runs = runs_at(db, ledger, AFTER_GRACE)
    await asyncio.gather(*(runs.run(Wanted(NOVEMBER)) for _ in range(3)))
    for each in tenants:
        assert len(await each.invoices()) == 1
        assert await unbilled(each) == 0
    found = await numbers(db)
    assert found == list(range(1, len(found) + 1))


class KilledError(BaseException):
    """Nobody catches it."""


@contextmanager
def crashing(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """The process ends when `after` invoices have been made, before the next commit."""
    made = 0
    real = Maker._finalise

    async def finalise(self: Maker, *rest: Any) -> None:
        nonlocal made
        await real(self, *rest)
        made += 1
        if made > after:
            raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Maker, "_finalise", finalise)
        yield


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_a_run_that_was_killed_is_begun_again(
    db: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    tenants = [await new_invoice_books(db, ledger) for _ in range(7)]
    for each in tenants:
        await each.use(DAY, "1.5")
    runs = runs_at(db, ledger, AFTER_GRACE)
    with crashing(monkeypatch, after), pytest.raises(KilledError):
        await runs.run(Wanted(NOVEMBER))
    half = [len(await each.invoices()) for each in tenants]
    assert sum(half) < len(tenants)
    await runs.run(Wanted(NOVEMBER))
    for each in tenants:
        ((_, status, _, total),) = await each.invoices()
        assert (status, total) == ("final", Decimal("1.5"))
        assert (await each.books.totals())["USD", "receivable"] == Decimal("1.5")
    found = await numbers(db)
    assert found == list(range(1, len(found) + 1))


async def test_one_that_fails_keeps_no_other(
    db: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await new_invoice_books(db, ledger), await new_invoice_books(db, ledger)
    for each in (bad, good):
        await each.use(DAY, "1")
    real = Maker.make

    async def make(self: Maker, session: Any, customer: Any, *rest: Any, **more: Any) -> Any:
        if customer.id == bad.tenant_id:
            raise ArithmeticError("absurd")
        return await real(self, session, customer, *rest, **more)

    monkeypatch.setattr(Maker, "make", make)
    report = await runs_at(db, ledger, AFTER_GRACE).run(Wanted(NOVEMBER))
    assert report.failed == [(bad.tenant_id, "absurd")]
    assert good.tenant_id in [row.tenant_id for row in report.made]
    assert await bad.invoices() == []


async def test_a_run_goes_on_where_it_stopped(
    db: Database, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = [await new_invoice_books(db, ledger) for _ in range(5)]
    for each in tenants:
        await each.use(DAY, "1")
    monkeypatch.setattr("tenora_platform.invoices.runs.BATCH", 2)
    runs = runs_at(db, ledger, AFTER_GRACE)
    after, rounds = "", 0
    while True:
        report = await runs.run(Wanted(NOVEMBER, after=after), most_s=0)
        rounds += 1
        if report.next_after is None:
            break
        after = report.next_after
    assert rounds >= 3
    assert all([len(await each.invoices()) == 1 for each in tenants])


async def test_void_gives_back_and_the_next_run_takes_it(books: InvoiceBooks) -> None:
    await books.use(DAY, "1.239")
    (row,) = (await books.run()).made
    await books.void(row.id)
    await books.void(row.id)  # once more is no error
    totals = await books.books.totals()
    assert totals == {
        ("USD", "unbilled"): Decimal("1.239"),
        ("USD", "revenue:output"): Decimal("-1.239"),
    }
    (again,) = (await books.run()).made
    assert [each[:2] for each in await books.invoices()] == [
        ("2026-11", "void"),
        ("2026-11", "final"),
    ]
    assert again.number != row.number
    assert again.total == row.total
    assert await unbilled(books) == 0


async def test_credit_pays_what_the_ledger_says(books: InvoiceBooks) -> None:
    await books.execute(
        "insert into credit_grants (id, tenant_id, amount, created_at) "
        "values ('credit_' || :tenant, :tenant, 3.333, '2026-11-01')"
    )
    await books.use(DAY, "10")
    await books.use(DAY, "0.004", "stored")
    (draft,) = (await books.run(draft=True)).made
    assert await unbilled(books) == Decimal("10.004")
    (row,) = (await books.run()).made
    assert (await books.lines(row.id))[-1] == ("credit", None, Decimal("-3.33"))
    assert row.total == draft.total == Decimal("6.67")
    assert await unbilled(books) == 0
    await books.void(row.id)
    (again,) = (await books.run()).made
    assert again.total == row.total
    await books.use(DAY, "1")
    (late,) = (await books.run(DECEMBER, at=IN_JANUARY)).made
    assert late.total == 1  # the credit is not shown twice


async def test_a_minimum_is_asked_of_who_used_nothing(books: InvoiceBooks) -> None:
    assert (await books.run(at=IN_JANUARY, period=DECEMBER)).made == []
    await books.terms(minimum="12.5")
    await books.execute("update tenants set created_at = '2026-11-20' where id = :tenant")
    assert (await books.run(OCTOBER)).made == []  # it was not there
    (row,) = (await books.run()).made
    assert await books.lines(row.id) == [("minimum", "2026-11", Decimal("4.58"))]
    assert row.terms["minimum_days"] == "11/30"


async def test_a_minimum_is_of_the_days_that_the_tenant_was_there(books: InvoiceBooks) -> None:
    """Its first month and its last; as one draft after the other, and once final."""
    await books.terms(minimum="30", included="1")
    await books.execute(
        "update tenants set created_at = '2026-10-16 23:59:59+00' where id = :tenant"
    )
    await books.use(date(2026, 10, 20), "5")
    for draft in (True, True, None):
        (october,) = (await books.run(OCTOBER, draft=draft)).made
        # 16 of 31 days: 15.48; 5 were used, and 1 is included.
        kinds = [(kind, amount) for kind, _, amount in await books.lines(october.id)]
        assert kinds == [
            ("usage", Decimal("5.00")),
            ("included", Decimal("-1.00")),
            ("minimum", Decimal("11.48")),
        ]
    assert (await books.run(OCTOBER)).made == []
    await books.execute(
        "update tenants set status = 'suspended', status_before = 'active', "
        "deleted_at = '2026-12-10', erase_after = '2026-12-17' where id = :tenant"
    )
    (november,) = (await books.run()).made
    assert await books.lines(november.id) == [("minimum", "2026-11", Decimal("30.00"))]
    assert "minimum_days" not in november.terms
    (december,) = (await books.run(DECEMBER, at=IN_JANUARY)).made
    assert await books.lines(december.id) == [("minimum", "2026-12", Decimal("9.68"))]
    assert (await books.run(date(2027, 1, 1), at=datetime(2027, 2, 9, tzinfo=UTC))).made == []


async def test_a_month_is_billed_by_the_plan_it_had(books: InvoiceBooks) -> None:
    """The tenant moves on the 25th of November, before October's invoice is made: what it asks for
    at least is October's; a day of November has the plan that the tenant had when it ended."""
    await books.plan("dear", minimum="100")
    await books.use(OCTOBER, "3")
    await books.move("dear", datetime(2026, 11, 25, 10, tzinfo=UTC))
    (october,) = (await books.run(OCTOBER)).made
    assert october.total == 3
    (november,) = (await books.run()).made
    assert november.total == 20  # of six days of thirty
    assert november.terms["plans"] == [
        {"plan": "free", "start": "2026-11-01", "end": "2026-11-25"},
        {"plan": "dear", "start": "2026-11-25", "end": "2026-12-01"},
    ]
    await books.move("free", datetime(2027, 1, 2, tzinfo=UTC))
    (december,) = (await books.run(DECEMBER, at=IN_JANUARY)).made
    assert (december.total, december.terms["plan"]) == (Decimal(100), "dear")


async def test_a_month_made_again_asks_for_its_minimum_once(books: InvoiceBooks) -> None:
    """Void, then the next month's run, which takes its usage, then its own again: as much as if
    none had been void."""
    await books.terms(minimum="100")
    await books.use(OCTOBER, "90")
    (october,) = (await books.run(OCTOBER)).made
    assert october.total == 100
    await books.void(october.id)
    (november,) = (await books.run()).made
    assert november.total == 190
    (again,) = (await books.run(OCTOBER)).made
    assert await books.lines(again.id) == [("minimum", "2026-10", Decimal("10.00"))]
    assert await unbilled(books) == 0


async def test_late_usage_is_paid_by_the_minimum_of_its_month(books: InvoiceBooks) -> None:
    await books.terms(minimum="100", included="5")
    await books.use(OCTOBER, "3")
    await books.run(OCTOBER)
    await books.use(OCTOBER, "50")
    (november,) = (await books.run()).made
    assert await books.lines(november.id) == [
        ("adjustment", "2026-10", Decimal("50.00")),
        ("included", "2026-10", Decimal("-2.00")),
        ("minimum", "2026-11", Decimal("100.00")),
        ("minimum", "2026-10", Decimal("-48.00")),
    ]


async def test_included_usage_comes_before_credit(books: InvoiceBooks) -> None:
    """Five are included in a month, and ten were granted: November's three cost no credit, of
    December's twelve credit pays seven, and it pays for no minimum."""
    await books.terms(minimum="20", included="5")
    await books.execute(
        "insert into credit_grants (id, tenant_id, amount, created_at) "
        "values ('credit_' || :tenant, :tenant, 10, '2026-11-01')"
    )
    await books.use(DAY, "3")
    (november,) = (await books.run()).made
    assert [(kind, int(amount)) for kind, _, amount in await books.lines(november.id)] == [
        ("usage", 3),
        ("included", -3),
        ("minimum", 20),
    ]
    await books.use(date(2026, 12, 20), "12")
    (december,) = (await books.run(DECEMBER, at=IN_JANUARY)).made
    assert [(kind, int(amount)) for kind, _, amount in await books.lines(december.id)] == [
        ("usage", 12),
        ("included", -5),
        ("minimum", 13),
        ("credit", -7),
    ]
    assert (await books.books.totals())["USD", "credit:granted"] == -3


async def test_a_worker_makes_months_final_where_it_may(books: InvoiceBooks, api: Api) -> None:
    await books.use(date(2026, 10, 2), "1")
    await books.use(DAY, "2")
    worker = InvoiceWorker(api.state)
    assert await worker.run_once(AFTER_GRACE) == 0
    await books.execute("update billing_settings set automatic = true")
    await worker.run_once(IN_GRACE)
    assert [each[:2] for each in await books.invoices()] == [("2026-10", "final")]
    await worker.run_once(AFTER_GRACE)
    await worker.run_once(AFTER_GRACE)
    assert [(each[0], each[3]) for each in await books.invoices()] == [
        ("2026-10", Decimal(1)),
        ("2026-11", Decimal(2)),
    ]
    await books.execute("update billing_settings set automatic = false")


async def test_what_waits_for_a_price_is_not_invoiced(books: InvoiceBooks) -> None:
    await books.use(DAY, "1")
    await books.execute(
        "insert into usage_days (tenant_id, day, series_id, price_version_no, output) "
        "values (:tenant, :day, :series, 0, 500)",
        day=DAY,
        series=books.books.series,
    )
    (row,) = (await books.run()).made
    assert row.total == 1


@pytest.mark.parametrize(
    "statement",
    [
        "update invoices set total = total + 1, subtotal = subtotal + 1 where id = :id",
        "update invoices set status = 'draft', number = null where id = :id",
        "update invoices set number = 'INV-9' where id = :id",
        "delete from invoices where id = :id",
        "update invoice_lines set amount = 0 where invoice_id = :id",
        "delete from invoice_lines where invoice_id = :id",
        "update invoice_usage set output_amount = 0 where invoice_id = :id",
        "insert into invoice_lines (invoice_id, no, tenant_id, kind, amount, exact) "
        "values (:id, 99, :tenant, 'usage', 1, 1)",
        "truncate invoice_usage",
    ],
)
async def test_what_is_final_stays(books: InvoiceBooks, statement: str) -> None:
    await books.use(DAY, "1")
    (row,) = (await books.run()).made
    with pytest.raises(DBAPIError) as caught:
        await books.execute(statement, id=row.id)
    assert isinstance(
        caught.value.orig,
        psycopg.errors.RestrictViolation | psycopg.errors.InsufficientPrivilege,
    )


async def test_prices_and_parties_are_kept_as_they_were(books: InvoiceBooks) -> None:
    await books.execute(
        "insert into prices (price_version_id, meter, class, from_quantity, per_million) "
        "select id, 'output', '', each.at, each.price from price_versions, "
        "(values (0, 0.4), (1000, 0.3)) as each (at, price) where no = :no",
        no=books.books.versions["USD"],
    )
    await books.tax("7.5")
    await books.use(DAY, "1")
    (row,) = (await books.run()).made
    await books.execute("update billing_profiles set name = 'Other', tax_rate = 0")
    found = await books.books.rows(
        "select i.buyer, i.terms, l.prices from invoices i join invoice_lines l "
        "on l.invoice_id = i.id where i.id = :id and l.no = 1",
        id=row.id,
    )
    ((buyer, terms, prices),) = found
    assert buyer["name"] == "Buyer"
    assert (terms["tax_name"], terms["tax_rate"]) == ("VAT", "7.5")
    assert prices == [
        {"from": 0, "per_million": "0.4"},
        {"from": 1000, "per_million": "0.3"},
    ]
