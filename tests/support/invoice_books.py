"""Invoices over a tenant's books: runs at a time that a test chooses, and what came of them, read
by SQL of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import text

from ledger_books import Books, new_books
from tenora_platform.audit.service import AuditLog
from tenora_platform.db import Database
from tenora_platform.ids import new_id
from tenora_platform.invoices.runs import InvoiceRuns, Report, Wanted
from tenora_platform.invoices.service import InvoiceService
from tenora_platform.ledger.service import Ledger
from tenora_platform.secret import ServerSecret

OCTOBER, NOVEMBER, DECEMBER = date(2026, 10, 1), date(2026, 11, 1), date(2026, 12, 1)
IN_GRACE = datetime(2026, 12, 3, 23, tzinfo=UTC)
AFTER_GRACE = datetime(2026, 12, 4, tzinfo=UTC)  # of November, with three days
IN_JANUARY = datetime(2027, 1, 10, tzinfo=UTC)
_SECRET = ServerSecret(b"of the invoices' tests")


def runs_at(db: Database, ledger: Ledger, now: datetime) -> InvoiceRuns:
    return InvoiceRuns(db, ledger, AuditLog(_SECRET), "test", now=lambda: now)


@dataclass(frozen=True)
class InvoiceBooks:
    """One tenant's."""

    books: Books

    @property
    def tenant_id(self) -> str:
        return self.books.tenant_id

    async def use(self, day: date, amount: str, meter: str = "output") -> None:
        await self.books.used(day, "USD", meter, Decimal(amount))

    async def run(
        self, period: date = NOVEMBER, *, at: datetime = AFTER_GRACE, draft: bool | None = None
    ) -> Report:
        runs = runs_at(self.books.db, self.books.ledger, at)
        return await runs.run(Wanted(period, self.tenant_id, draft))

    async def terms(self, *, minimum: str = "0", included: str = "0") -> None:
        """Of a price list of the tenant's own."""
        await self.execute(
            "insert into price_versions "
            "(id, tenant_id, currency, effective_from, minimum, included) "
            "values (:id, :tenant, 'USD', '2020-06-01', :minimum, :included)",
            id=new_id("price"),
            minimum=Decimal(minimum),
            included=Decimal(included),
        )

    async def plan(self, name: str, *, minimum: str = "0") -> None:
        """A plan with a price list of its own for this tenant."""
        await self.execute(
            "insert into plans (name, sla_class, tiers, weight) "
            "values (:name, 'default', '{default}', 1) on conflict do nothing",
            name=name,
        )
        await self.execute(
            "insert into price_versions "
            "(id, tenant_id, plan, currency, effective_from, minimum) "
            "values (:id, :tenant, :name, 'USD', '2020-06-01', :minimum)",
            id=new_id("price"),
            name=name,
            minimum=Decimal(minimum),
        )

    async def move(self, plan: str, at: datetime) -> None:
        """To another plan, at a time of the test's choosing."""
        await self.execute(
            "insert into tenant_plans (tenant_id, since, plan) values (:tenant, :at, :plan)",
            at=at,
            plan=plan,
        )

    async def tax(self, rate: str, name: str = "VAT") -> None:
        await self.execute(
            "insert into billing_profiles (tenant_id, name, tax_name, tax_rate) "
            "values (:tenant, 'Buyer', :name, :rate)",
            name=name,
            rate=Decimal(rate),
        )

    async def execute(self, statement: str, **values: Any) -> None:
        async with self.books.db.admin_session() as session:
            await session.execute(text(statement), {"tenant": self.tenant_id, **values})

    async def invoices(self) -> list[tuple[str, str, str | None, Decimal]]:
        """(period, status, number, total), oldest first; no credit notes."""
        return [
            (f"{period:%Y-%m}", status, number, total)
            for period, status, number, total in await self.books.rows(
                "select period, status, number, total from invoices "
                "where tenant_id = :tenant and kind = 'invoice' order by period, id"
            )
        ]

    async def lines(self, invoice_id: str) -> list[tuple[str, str | None, Decimal]]:
        """(kind, month of usage, amount)"""
        return [
            (kind, f"{month:%Y-%m}" if month else None, amount)
            for kind, month, amount in await self.books.rows(
                "select kind, month, amount from invoice_lines where invoice_id = :id order by no",
                id=invoice_id,
            )
        ]

    async def void(self, invoice_id: str) -> None:
        async with self.books.db.admin_session() as session:
            service = InvoiceService(session, self.books.ledger, AuditLog(_SECRET), "test")
            await service.void(invoice_id, "a mistake")

    async def credit(self, invoice_id: str, lines: dict[int, str]) -> Decimal:
        """The credit note's total."""
        async with self.books.db.admin_session() as session:
            service = InvoiceService(session, self.books.ledger, AuditLog(_SECRET), "test")
            amounts = {no: Decimal(amount) for no, amount in lines.items()}
            return (await service.credit(invoice_id, amounts, "a gift")).total

    async def pay(self, invoice_id: str, amount: str, reference: str) -> str:
        async with self.books.db.admin_session() as session:
            service = InvoiceService(session, self.books.ledger, AuditLog(_SECRET), "test")
            return (await service.pay(invoice_id, Decimal(amount), reference, None)).id


async def new_invoice_books(db: Database, ledger: Ledger) -> InvoiceBooks:
    return InvoiceBooks(await new_books(db, ledger))
