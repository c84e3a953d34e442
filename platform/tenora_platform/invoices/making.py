"""Makes one tenant's invoice of one month out of what no invoice has had, as a draft or final:
lines, ledger, number, event, all in the caller's transaction. For whom and when is the runs'
matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.terms import MonthTerms
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.invoices import repository
from tenora_platform.invoices.currency import plain, shown
from tenora_platform.invoices.digest import digest_of
from tenora_platform.invoices.lines import Bill, Billed, Month, Tax, Used, make_bill
from tenora_platform.invoices.period import end_of, name_of
from tenora_platform.invoices.postings import Entries, of_invoice
from tenora_platform.invoices.price_lists import PriceVersions
from tenora_platform.invoices.repository import Invoiced
from tenora_platform.invoices.tables import (
    BillingProfileRow,
    BillingSettingsRow,
    InvoiceRow,
    TenantTaxRow,
)
from tenora_platform.invoices.unbilled import take_usage
from tenora_platform.ledger.service import Entry, Ledger

INVOICE = "invoice"
"""The kind of its posting in the ledger, and its series of numbers."""
_DIGITS = 6


@dataclass(frozen=True)
class Maker:
    """What the invoices of one run have in common."""

    ledger: Ledger
    audit: AuditLog
    actor: str
    period: date
    now: datetime
    settings: BillingSettingsRow
    versions: PriceVersions
    prices: Prices

    def asks_minimum(self, tenant: Invoiced) -> bool:
        """Whether there is an invoice even if nothing was used."""
        terms = tenant.customer.terms(self.prices, self.period)
        return any(each.minimum > 0 for each in terms.by_currency.values())

    async def make(
        self,
        session: AsyncSession,
        tenant: Invoiced,
        currency: str,
        *,
        credit: Decimal,
        draft: InvoiceRow | None,
        final: bool,
    ) -> InvoiceRow | None:
        """The invoice, `draft` made anew if there is one; None where there is nothing to invoice.
        The tenant's money must be locked, and its usage posted."""
        terms, end = tenant.customer.terms(self.prices, self.period), end_of(self.period)
        tax = _tax_of(await repository.tax_on(session, tenant.id, end - timedelta(days=1)))
        row = await self._begin(session, tenant, currency, terms, tax, draft)
        used = await take_usage(session, row, end, self.versions.numbers(currency))
        billed = await repository.billed(session, row)
        bill = make_bill(
            self.period,
            currency,
            used,
            self._months(tenant, currency, used, billed),
            credit=credit,
            tax=tax,
        )
        if not bill.lines:
            await repository.clear_draft(session, row)
            await session.delete(row)
            return None
        await repository.add_lines(session, self._line_values(row, bill))
        row.subtotal, row.tax, row.total = bill.subtotal, bill.tax, bill.total
        if final:
            await self._finalise(session, row, bill)
        await session.flush()
        return row

    async def _begin(
        self,
        session: AsyncSession,
        tenant: Invoiced,
        currency: str,
        terms: MonthTerms,
        tax: Tax | None,
        draft: InvoiceRow | None,
    ) -> InvoiceRow:
        """An empty draft with its terms; the parties are as they are now."""
        if draft is not None:
            await repository.clear_draft(session, draft)
        row = draft or InvoiceRow(
            id=new_id("invoice"),
            tenant_id=tenant.id,
            kind="invoice",
            status="draft",
            period=self.period,
            currency=currency,
        )
        row.seller = party(self.settings)
        profile = await repository.profile(session, tenant.id)
        row.buyer = party(profile) | {"tenant": tenant.name}
        row.terms = _terms_told(terms, currency) | _tax_told(tax)
        row.created_at = self.now
        session.add(row)
        await session.flush()
        return row

    def _months(
        self,
        tenant: Invoiced,
        currency: str,
        used: Iterable[Used],
        billed: Mapping[date, Billed],
    ) -> dict[date, Month]:
        """The period, the months of late usage, and those whose minimum was given back by an
        invoice that holds though their own does not."""
        earlier = {month: each for month, each in billed.items() if month < self.period}
        given_back = {month for month, each in earlier.items() if each.minimum < 0}
        touched = {self.period, *given_back, *(each.month for each in used)}
        return {
            month: Month(
                tenant.customer.terms(self.prices, month).of(currency),
                billed.get(month, Billed()),
            )
            for month in touched
        }

    def _line_values(self, row: InvoiceRow, bill: Bill) -> list[dict[str, Any]]:
        return [
            {
                "invoice_id": row.id,
                "no": line.no,
                "tenant_id": row.tenant_id,
                "kind": line.kind,
                "amount": line.amount,
                "exact": line.exact,
                "month": line.month,
                "meter": line.meter,
                "class_": line.class_,
                "price_version_no": line.price_version_no,
                "quantity": line.quantity,
                "prices": self.versions.prices_of(line),
            }
            for line in bill.lines
        ]

    async def _finalise(self, session: AsyncSession, row: InvoiceRow, bill: Bill) -> None:
        """From now on it stays as it is. The number comes late: it is locked until the commit."""
        row.ledger_transaction_id = await post(
            session, self.ledger, row, of_invoice(bill), kind=INVOICE, now=self.now
        )
        row.number = await take_number(session, INVOICE, self.settings.number_prefix)
        row.status = "final"
        row.finalised_at = self.now
        row.due_at = self.now + timedelta(days=self.settings.payment_days)
        told = summary(row)
        await events.add(
            session, tenant_id=row.tenant_id, type="invoice.final", once=row.id, data=told
        )
        await self.audit.append(
            session,
            actor=self.actor,
            action="invoice.finalise",
            target=row.id,
            tenant_id=row.tenant_id,
            after=told | _of_taking(row) | {"digest": await digest_of(session, row)},
        )


def _of_taking(row: InvoiceRow) -> dict[str, str]:
    return {} if row.taken_at is None else {"taken_at": row.taken_at.isoformat()}


async def post(
    session: AsyncSession,
    ledger: Ledger,
    row: InvoiceRow,
    entries: Entries,
    *,
    kind: str,
    now: datetime,
    reference: str | None = None,
) -> str | None:
    """Into the ledger, on the day it happens; the posting's id. None where no money moves."""
    if not entries:
        return None
    posted = await ledger.post(
        session,
        row.tenant_id,
        kind=kind,
        reference=reference or row.id,
        currency=row.currency,
        day=now.date(),
        entries=[Entry(account, amount) for account, amount in entries.items()],
        created_at=now,
    )
    return posted.id


async def take_number(session: AsyncSession, series: str, prefix: str) -> str:
    """The next one of the series; nobody else gets one until this transaction ends."""
    return f"{prefix}{await repository.next_number(session, series):0{_DIGITS}d}"


def summary(row: InvoiceRow) -> dict[str, str | None]:
    """What events and the audit log say of an invoice or credit note."""
    return {
        "id": row.id,
        "kind": row.kind,
        "number": row.number,
        "tenant_id": row.tenant_id,
        "period": name_of(row.period),
        "currency": row.currency,
        "subtotal": shown(row.subtotal, row.currency),
        "tax": shown(row.tax, row.currency),
        "total": shown(row.total, row.currency),
        "due_at": row.due_at.isoformat() if row.due_at else None,
    }


def party(row: BillingSettingsRow | BillingProfileRow | None) -> dict[str, str]:
    """One side as it is now, to be kept with an invoice."""
    names = ("name", "address", "tax_id", "email")
    return {name: getattr(row, name) if row is not None else "" for name in names}


def _tax_of(row: TenantTaxRow | None) -> Tax | None:
    return None if row is None or row.tax_rate is None else Tax(row.tax_name, row.tax_rate)


def _terms_told(terms: MonthTerms, currency: str) -> dict[str, Any]:
    """As the invoice keeps them: the plan of the month's end, every plan if there were several."""
    of = terms.of(currency)
    told: dict[str, Any] = {
        "plan": terms.plans[-1].plan,
        "minimum": plain(of.minimum),
        "included": plain(of.included),
    }
    if terms.days_there != terms.days:
        told["minimum_days"] = f"{terms.days_there}/{terms.days}"
    if len(terms.plans) > 1:
        told["plans"] = [
            {"plan": each.plan, "start": f"{each.first}", "end": f"{each.end}"}
            for each in terms.plans
        ]
    return told


def _tax_told(tax: Tax | None) -> dict[str, str]:
    return {} if tax is None else {"tax_name": tax.name, "tax_rate": plain(tax.rate)}
