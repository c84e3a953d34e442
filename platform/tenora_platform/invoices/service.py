"""What can be done to an invoice once it is final: void it, credit some of it, note a payment. Each
in the ledger, audited and told in its own transaction; the invoice itself stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.service import AuditLog
from tenora_platform.errors import BadRequestError, ConflictError, NotFoundError
from tenora_platform.events import repository as events
from tenora_platform.ids import new_id
from tenora_platform.invoices import repository
from tenora_platform.invoices.currency import (
    exact_sum,
    minor_unit,
    negated,
    percent,
    rounded,
    shown,
)
from tenora_platform.invoices.digest import digest_of
from tenora_platform.invoices.making import post, summary, take_number
from tenora_platform.invoices.postings import of_credit_note, of_payment
from tenora_platform.invoices.tables import InvoiceLineRow, InvoicePaymentRow, InvoiceRow
from tenora_platform.ledger.accounts import revenue
from tenora_platform.ledger.service import Ledger, lock_money
from tenora_platform.ledger.tables import LedgerTransactionRow
from tenora_platform.usage.booking import clock

CREDIT_NOTE = "credit_note"
PAYMENT = "payment"
_CREDITABLE = ("usage", "adjustment", "minimum")


@dataclass(frozen=True)
class InvoiceService:
    """Works inside one session of the operator's; commits nothing itself."""

    session: AsyncSession
    ledger: Ledger
    audit: AuditLog
    actor: str

    async def void(self, invoice_id: str, reason: str) -> InvoiceRow:
        """Take the invoice back: its posting is reversed, its number stays, and what it was for is
        due again. Once more is no error. Raises NotFoundError; ConflictError for a draft, a credit
        note, and what has payments or credit notes."""
        row = await self._locked(invoice_id)
        if row.status == "void":
            return row
        self._demand_final(row)
        if await repository.settled(self.session, [row.id]):
            raise ConflictError(
                "This invoice has payments or credit notes and cannot be voided. Create a "
                "credit note for the rest of it.",
                code="invoice_is_settled",
            )
        before = summary(row)
        if row.ledger_transaction_id is not None:
            posted = await self.session.get_one(LedgerTransactionRow, row.ledger_transaction_id)
            await self.ledger.reverse(self.session, posted, note=f"{row.number} is void")
        row.status, row.reason, row.voided_at = "void", reason, await clock(self.session)
        told: dict[str, str | None] = summary(row) | {"reason": reason}
        await events.add(
            self.session, tenant_id=row.tenant_id, type="invoice.void", once=row.id, data=told
        )
        at: dict[str, str | None] = {"voided_at": row.voided_at.isoformat()}
        await self._note("invoice.void", row, before=before, after=told | at)
        return row

    async def credit(
        self, invoice_id: str, lines: Mapping[int, Decimal], reason: str
    ) -> InvoiceRow:
        """A credit note: so much of each of these lines is given back, and its tax. Raises
        NotFoundError, ConflictError for what is not a final invoice, BadRequestError for more than
        a line or the invoice has left."""
        row = await self._locked(invoice_id)
        self._demand_final(row)
        of_row = (await repository.lines_of(self.session, [row.id]))[row.id]
        notes = await repository.notes_to(self.session, row.id)
        before = await repository.lines_of(self.session, [note.id for note in notes])
        credited = [line for each in before.values() for line in each]
        by_no = {line.no: line for line in of_row}
        for no, amount in lines.items():
            _demand_left(row.currency, by_no.get(no), no, amount, credited)
        subtotal = exact_sum(lines.values())
        tax = _tax_back(row, notes, subtotal)
        total = exact_sum((subtotal, tax))
        if exact_sum([total, *(note.total for note in notes)]) > row.total:
            raise BadRequestError(
                f"With {shown(total, row.currency)} more, the credit notes would exceed the "
                f"invoice's total of {shown(row.total, row.currency)}.",
                param="lines",
                code="more_than_the_invoice",
            )
        note = await self._add_note(row, subtotal, tax, reason)
        await self._add_note_lines(note, by_no, lines, tax)
        await self._finish_note(note, [(by_no[no], amount) for no, amount in lines.items()])
        return note

    async def pay(
        self, invoice_id: str, amount: Decimal, reference: str, paid_at: datetime | None
    ) -> InvoicePaymentRow:
        """Note money that came in, once for each reference. Raises NotFoundError, ConflictError for
        what is not a final invoice and for a reference with another amount or one that is reversed,
        BadRequestError for more than is open."""
        row = await self._locked(invoice_id)
        self._demand_final(row)
        for each, reversed_at in await repository.payments_of(self.session, row.id):
            if each.reference == reference:
                if each.amount == amount and reversed_at is None:
                    return each
                how = shown(each.amount, row.currency) + (", and reversed" if reversed_at else "")
                raise ConflictError(
                    f"The payment {reference!r} is already recorded with {how}.",
                    param="reference",
                    code="payment_noted_otherwise",
                )
        _demand_whole(row.currency, amount, "amount")
        due = await amount_due(self.session, row)
        if amount > due:
            raise BadRequestError(
                f"The open amount of this invoice is {shown(due, row.currency)}; "
                f"{shown(amount, row.currency)} is more than that.",
                param="amount",
                code="more_than_is_open",
            )
        now = datetime.now(UTC)
        payment = InvoicePaymentRow(
            id=new_id("payment"),
            tenant_id=row.tenant_id,
            invoice_id=row.id,
            amount=amount,
            reference=reference,
            paid_at=paid_at or now,
            created_at=now,
        )
        self.session.add(payment)
        await self.session.flush()
        entries = of_payment(amount)
        await post(
            self.session, self.ledger, row, entries, kind=PAYMENT, now=now, reference=payment.id
        )
        told = {
            "payment": payment.id,
            "reference": reference,
            "amount": shown(amount, row.currency),
            "paid_at": payment.paid_at.astimezone(UTC).isoformat(),
        }
        await self._note("invoice.pay", row, after=told)
        return payment

    async def _locked(self, invoice_id: str) -> InvoiceRow:
        """The tenant's money is locked before its rows, as everywhere."""
        row = await repository.get(self.session, invoice_id)
        if row is None:
            raise NotFoundError(f"There is no invoice {invoice_id[:80]!r}.")
        await lock_money(self.session, row.tenant_id)
        row = await repository.get(self.session, invoice_id, lock=True)
        if row is None:
            raise NotFoundError(f"There is no invoice {invoice_id[:80]!r}.")
        return row

    def _demand_final(self, row: InvoiceRow) -> None:
        if row.kind != "invoice" or row.status != "final":
            what = row.status if row.kind == "invoice" else "credit note"
            raise ConflictError(
                f"{row.number or row.id} is a {what}; this works only for final invoices.",
                code="invoice_not_final",
            )

    async def _add_note(
        self, row: InvoiceRow, subtotal: Decimal, tax: Decimal, reason: str
    ) -> InvoiceRow:
        now = datetime.now(UTC)
        note = InvoiceRow(
            id=new_id("creditnote"),
            tenant_id=row.tenant_id,
            kind=CREDIT_NOTE,
            status="draft",
            period=row.period,
            currency=row.currency,
            of_invoice=row.id,
            subtotal=subtotal,
            tax=tax,
            total=exact_sum((subtotal, tax)),
            seller=row.seller,
            buyer=row.buyer,
            terms={key: row.terms[key] for key in ("tax_name", "tax_rate") if key in row.terms},
            reason=reason,
            created_at=now,
        )
        self.session.add(note)
        await self.session.flush()
        return note

    async def _add_note_lines(
        self,
        note: InvoiceRow,
        of_invoice: Mapping[int, InvoiceLineRow],
        lines: Mapping[int, Decimal],
        tax: Decimal,
    ) -> None:
        rows: list[dict[str, object]] = []
        for no, amount in sorted(lines.items()):
            line = of_invoice[no]
            copied = {"month": line.month, "meter": line.meter, "class_": line.class_}
            rows.append(_line(note, len(rows) + 1, line.kind, amount) | copied | {"of_line": no})
        if tax:
            rows.append(_line(note, len(rows) + 1, "tax", tax))
        # One statement of many rows has the same columns in each.
        names = dict.fromkeys(name for row in rows for name in row)
        await repository.add_lines(
            self.session, [{name: row.get(name) for name in names} for row in rows]
        )

    async def _finish_note(
        self, note: InvoiceRow, lines: Sequence[tuple[InvoiceLineRow, Decimal]]
    ) -> None:
        given = [(revenue(line.meter or line.kind), amount) for line, amount in lines]
        note.ledger_transaction_id = await post(
            self.session,
            self.ledger,
            note,
            of_credit_note(given, note.tax),
            kind=CREDIT_NOTE,
            now=note.created_at,
        )
        settings = await repository.settings(self.session)
        note.number = await take_number(self.session, CREDIT_NOTE, settings.credit_note_prefix)
        note.status, note.finalised_at = "final", note.created_at
        told = summary(note) | {"of_invoice": note.of_invoice, "reason": note.reason}
        await events.add(
            self.session, tenant_id=note.tenant_id, type="invoice.credited", once=note.id, data=told
        )
        digest = await digest_of(self.session, note)
        await self._note("invoice.credit", note, after=told | {"digest": digest})

    async def _note(
        self,
        action: str,
        row: InvoiceRow,
        *,
        after: Mapping[str, object],
        before: Mapping[str, object] | None = None,
    ) -> None:
        await self.audit.append(
            self.session,
            actor=self.actor,
            action=action,
            target=row.id,
            tenant_id=row.tenant_id,
            before=before,
            after=after,
        )


async def amount_due(session: AsyncSession, row: InvoiceRow) -> Decimal:
    """What of an invoice is neither paid nor credited; nothing of one that is not final."""
    if row.kind != "invoice" or row.status != "final":
        return Decimal(0)
    paid, credited = (await repository.settled(session, [row.id])).get(row.id, (0, 0))
    return exact_sum((row.total, negated(Decimal(paid)), negated(Decimal(credited))))


def _line(note: InvoiceRow, no: int, kind: str, amount: Decimal) -> dict[str, object]:
    of = {"invoice_id": note.id, "tenant_id": note.tenant_id}
    return {**of, "no": no, "kind": kind, "amount": amount, "exact": amount}


def _demand_whole(currency: str, amount: Decimal, param: str) -> None:
    if amount <= 0 or amount % minor_unit(currency):
        raise BadRequestError(
            f"An amount in {currency} must be greater than 0 and a multiple of "
            f"{minor_unit(currency)}, not {amount}.",
            param=param,
            code="invalid_value",
        )


def _demand_left(
    currency: str,
    line: InvoiceLineRow | None,
    no: int,
    amount: Decimal,
    credited: Sequence[InvoiceLineRow],
) -> None:
    """Raises BadRequestError unless so much of the line can be given back."""
    _demand_whole(currency, amount, "lines")
    if line is None or line.kind not in _CREDITABLE:
        why = "does not exist" if line is None else f"is {line.kind} and cannot be credited"
        raise BadRequestError(f"Line {no} {why}.", param="lines", code="invalid_value")
    given = exact_sum(each.amount for each in credited if each.of_line == no)
    left = exact_sum((line.amount, negated(given)))
    if amount > left:
        raise BadRequestError(
            f"Line {no} has only {shown(left, currency)} left to credit.",
            param="lines",
            code="more_than_the_line",
        )


def _tax_back(row: InvoiceRow, notes: Sequence[InvoiceRow], subtotal: Decimal) -> Decimal:
    """The tax of all that is credited by now, less what notes before gave back: so parts of a line
    come to what the whole would."""
    if "tax_rate" not in row.terms:
        return Decimal(0)
    all_of_it = exact_sum([subtotal, *(note.subtotal for note in notes)])
    due = rounded(percent(all_of_it, Decimal(row.terms["tax_rate"])), row.currency)
    before = exact_sum(note.tax for note in notes)
    return exact_sum((min(due, row.tax), negated(before)))
