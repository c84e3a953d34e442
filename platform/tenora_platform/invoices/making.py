"""Makes one tenant's invoice of one month out of what no invoice has had, as a draft or final:
lines, ledger, number, event, all in the caller's transaction. For whom and when is the runs'
matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.invoices import repository
from tenora_platform.invoices.currency import plain, rounded, shown
from tenora_platform.invoices.digest import digest_of
from tenora_platform.invoices.lines import Bill, Tax, Terms, make_bill
from tenora_platform.invoices.period import end_of, midnight, name_of
from tenora_platform.invoices.postings import Entries, of_invoice
from tenora_platform.invoices.price_lists import PriceVersions
from tenora_platform.invoices.repository import Customer
from tenora_platform.invoices.tables import BillingProfileRow, BillingSettingsRow, InvoiceRow
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

    def asks_minimum(self, customer: Customer) -> bool:
        """Whether there is an invoice even if nothing was used."""
        found = self.versions.terms(customer.id, customer.plan, midnight(end_of(self.period)))
        return found is not None and customer.stay.share(found[1].minimum, self.period) > 0

    async def make(
        self,
        session: AsyncSession,
        customer: Customer,
        currency: str,
        *,
        credit: Decimal,
        draft: InvoiceRow | None,
        final: bool,
    ) -> InvoiceRow | None:
        """The invoice, `draft` made anew if there is one; None where there is nothing to invoice.
        The tenant's money must be locked, and its usage posted."""
        profile = await repository.profile(session, customer.id)
        row = await self._begin(session, customer, currency, profile, draft)
        end = end_of(self.period)
        used = await take_usage(session, row, end, self.versions.numbers(currency))
        bill = make_bill(
            self.period,
            currency,
            used,
            terms=self._terms(customer, currency),
            credit=credit,
            tax=_tax_of(profile),
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
        customer: Customer,
        currency: str,
        profile: BillingProfileRow | None,
        draft: InvoiceRow | None,
    ) -> InvoiceRow:
        """An empty draft with everything that is as it is now."""
        if draft is not None:
            await repository.clear_draft(session, draft)
        row = draft or InvoiceRow(
            id=new_id("invoice"),
            tenant_id=customer.id,
            kind="invoice",
            status="draft",
            period=self.period,
            currency=currency,
        )
        terms = self._terms(customer, currency)
        row.seller = party(self.settings)
        row.buyer = party(profile) | {"tenant": customer.name}
        row.terms = {
            "plan": customer.plan,
            "minimum": plain(terms.minimum),
            "included": plain(terms.included),
            **_tax_told(profile),
            **self._days_told(customer),
        }
        row.created_at = self.now
        session.add(row)
        await session.flush()
        return row

    def _days_told(self, customer: Customer) -> dict[str, str]:
        there, of = customer.stay.days(self.period)
        return {} if there == of else {"minimum_days": f"{there}/{of}"}

    def _terms(self, customer: Customer, currency: str) -> Terms:
        """The minimum by the days of the month on which the tenant was there, rounded."""
        found = self.versions.terms(customer.id, customer.plan, midnight(end_of(self.period)))
        if found is None or found[0] != currency:
            return Terms()
        terms = found[1]
        share = customer.stay.share(terms.minimum, self.period)
        if share == terms.minimum:
            return terms
        return replace(terms, minimum=rounded(share, currency))

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
            after=told | {"digest": await digest_of(session, row)},
        )


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


def _tax_of(profile: BillingProfileRow | None) -> Tax | None:
    if profile is None or profile.tax_rate is None:
        return None
    return Tax(profile.tax_name, profile.tax_rate)


def _tax_told(profile: BillingProfileRow | None) -> dict[str, str]:
    tax = _tax_of(profile)
    return {} if tax is None else {"tax_name": tax.name, "tax_rate": plain(tax.rate)}
