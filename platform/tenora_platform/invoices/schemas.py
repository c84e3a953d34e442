"""Invoices over HTTP. Amounts are decimal strings in the currency's own decimals; exact ones have
as many as they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StringConstraints

from tenora_platform.invoices.currency import plain, shown
from tenora_platform.invoices.lines import LineKind
from tenora_platform.invoices.period import PeriodName, end_of, name_of
from tenora_platform.invoices.tables import InvoiceLineRow, InvoicePaymentRow, InvoiceRow
from tenora_platform.jobs.schemas import JobView, common
from tenora_platform.jobs.tables import JobRow
from tenora_platform.plain_text import ONE_LINE, SEVERAL_LINES
from tenora_platform.schemas import Body, IdItem, ListPage
from tenora_platform.times import BodyTime

Kind = Literal["invoice", "credit_note"]
Status = Literal["draft", "final", "void"]
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=200, pattern=ONE_LINE)]
Lines = Annotated[  # the only control character is the newline
    str,
    StringConstraints(strip_whitespace=True, max_length=1000, pattern=SEVERAL_LINES),
]
Reason = Annotated[Text, Field(min_length=1)]
UNITS = {
    "uncached_prefill": "tokens",
    "cached_prefill": "tokens",
    "output": "tokens",
    "cold_load": "loads",
    "device_residency": "kB seconds",
    "host_residency": "kB seconds",
    "stored": "kB hours",
}
_LABELS = {
    "uncached_prefill": "Prompt tokens",
    "cached_prefill": "Cached prompt tokens",
    "output": "Output tokens",
    "cold_load": "Adapter loads",
    "device_residency": "Adapters in device memory",
    "host_residency": "Adapters in host memory",
    "stored": "Stored adapters",
    "included": "Included in the plan",
    "minimum": "Difference to the plan's minimum",
    "credit": "Paid by credit",
}


class Party(BaseModel):
    """One party of an invoice, as it was when the invoice was made. `tenant` is the buyer's name in
    Tenora."""

    name: str = ""
    address: str = ""
    tax_id: str = ""
    email: str = ""
    tenant: str | None = None


class PlanSpan(BaseModel):
    """A plan from its `start` until before its `end`."""

    plan: str
    start: date
    end: date


class InvoiceTerms(BaseModel):
    """The terms that applied in the month. `plan` is that of its last day; `plans` lists all, if
    there were several: minimum and included usage are those of each day, shared out over the month.
    `tax_rate` is in percent; `minimum_days`, such as `5/30`, are the days of the month on which the
    tenant was there, if not all."""

    plan: str | None = None
    plans: list[PlanSpan] | None = None
    minimum: str | None = None
    minimum_days: str | None = None
    included: str | None = None
    tax_name: str | None = None
    tax_rate: str | None = None


class PriceTier(BaseModel):
    """The price from the quantity `from` of a month on."""

    from_: int = Field(alias="from", serialization_alias="from")
    per_million: str


class InvoiceLine(BaseModel):
    """`amount` is `exact_amount` rounded to the currency (half to even). Lines of usage name their
    month, meter, class and price version."""

    no: int
    kind: LineKind
    description: str
    month: str | None
    meter: str | None
    class_: str | None = Field(serialization_alias="class")
    price_version: int | None
    prices: list[PriceTier] | None
    quantity: int | None
    unit: str | None
    exact_amount: str
    amount: str
    of_line: int | None = None


class Payment(IdItem):
    """A payment with `reversed_at` no longer counts."""

    object: Literal["payment"] = "payment"
    amount: str
    reference: str
    paid_at: datetime
    reversed_at: datetime | None
    created_at: datetime

    @classmethod
    def of(
        cls, row: InvoicePaymentRow, currency: str, reversed_at: datetime | None = None
    ) -> Payment:
        return cls(
            id=row.id,
            amount=shown(row.amount, currency),
            reference=row.reference,
            paid_at=row.paid_at,
            reversed_at=reversed_at,
            created_at=row.created_at,
        )


class InvoiceSummary(IdItem):
    """An invoice, or a credit note for one (`of_invoice`), whose amounts are what is credited.
    `tenant_name` is the name when the invoice was made."""

    object: Literal["invoice"] = "invoice"
    kind: Kind
    status: Status
    number: str | None
    tenant_id: str
    tenant_name: str | None
    period: str
    start: date
    end: date
    currency: str
    subtotal: str
    tax: str
    total: str
    amount_paid: str
    amount_credited: str
    amount_due: str
    of_invoice: str | None
    reason: str | None
    created_at: datetime
    finalised_at: datetime | None
    due_at: datetime | None
    voided_at: datetime | None

    @classmethod
    def fields_of(cls, row: InvoiceRow, settled: tuple[Decimal, Decimal]) -> dict[str, Any]:
        paid, credited = settled
        holds = row.kind == "invoice" and row.status == "final"
        due = row.total - paid - credited if holds else Decimal(0)
        money = {
            "subtotal": row.subtotal,
            "tax": row.tax,
            "total": row.total,
            "amount_paid": paid,
            "amount_credited": credited,
            "amount_due": due,
        }
        same = (
            "id kind status number tenant_id currency of_invoice reason created_at finalised_at "
            "due_at voided_at"
        )
        return {
            **{name: getattr(row, name) for name in same.split()},
            **{name: shown(amount, row.currency) for name, amount in money.items()},
            "tenant_name": row.buyer.get("tenant"),
            "period": name_of(row.period),
            "start": row.period,
            "end": end_of(row.period),
        }

    @classmethod
    def of(cls, row: InvoiceRow, settled: tuple[Decimal, Decimal]) -> InvoiceSummary:
        return cls(**cls.fields_of(row, settled))


class InvoicePage(ListPage[InvoiceSummary]):
    pass


class Invoice(InvoiceSummary):
    """A whole invoice."""

    seller: Party
    buyer: Party
    terms: InvoiceTerms
    lines: list[InvoiceLine]
    payments: list[Payment]

    @classmethod
    def whole(
        cls,
        row: InvoiceRow,
        lines: Sequence[InvoiceLineRow],
        payments: Sequence[tuple[InvoicePaymentRow, datetime | None]],
        settled: tuple[Decimal, Decimal],
    ) -> Invoice:
        return cls(
            **cls.fields_of(row, settled),
            seller=Party(**row.seller),
            buyer=Party(**row.buyer),
            terms=InvoiceTerms(**row.terms),
            lines=[line_view(line, row) for line in lines],
            payments=[
                Payment.of(each, row.currency, reversed_at) for each, reversed_at in payments
            ],
        )


def line_view(line: InvoiceLineRow, row: InvoiceRow) -> InvoiceLine:
    return InvoiceLine(
        no=line.no,
        kind=line.kind,
        description=_description(line, row.period, row.terms),
        month=name_of(line.month) if line.month else None,
        meter=line.meter,
        class_=line.class_,
        price_version=line.price_version_no,
        prices=[PriceTier(**each) for each in line.prices] if line.prices is not None else None,
        quantity=int(line.quantity) if line.quantity is not None else None,
        unit=UNITS.get(line.meter or ""),
        exact_amount=plain(line.exact),
        amount=shown(line.amount, row.currency),
        of_line=line.of_line,
    )


def _description(line: InvoiceLineRow, period: date, terms: Mapping[str, Any]) -> str:
    """In words, of Latin letters only."""
    if line.kind == "tax":
        return f"{terms.get('tax_name') or 'Tax'} {terms.get('tax_rate', '')}%".replace(" %", "")
    label = _LABELS.get(line.meter or line.kind, line.meter or line.kind)
    class_ = f", class {line.class_}" if line.class_ else ""
    if line.month is None or line.month == period:
        return f"{label}{class_}"
    late = "late usage of " if line.kind == "adjustment" else ""
    return f"{label}{class_}, {late}{name_of(line.month)}"


class RunBody(Body):
    """`period` is a month such as "2026-11"; default: the last full month. `draft` true: make
    drafts, which can be made again; false: make final invoices now; absent: final invoices once the
    grace period has passed, drafts before. `after`: continue where an earlier run stopped
    (`next_after`)."""

    tenant: str | None = Field(default=None, min_length=1, max_length=80)
    period: PeriodName | None = None
    draft: bool | None = None
    after: str = Field(default="", max_length=80)


class RunFailure(BaseModel):
    tenant: str
    reason: str


class InvoiceRun(BaseModel):
    """`made` is the number of invoices; the first hundred are in `invoices`. `unchanged`: tenants
    whose invoice is already final; `empty`: tenants with nothing to invoice. `has_more`: run again
    with `after` = `next_after`."""

    object: Literal["invoice_run"] = "invoice_run"
    period: str
    status: Literal["draft", "final"]
    made: int
    unchanged: int
    empty: int
    failed: list[RunFailure]
    invoices: list[InvoiceSummary]
    has_more: bool
    next_after: str | None


class RunJobBody(Body):
    """As of a run that answers when it is done: the month, one tenant or all, drafts or not."""

    tenant: str | None = Field(default=None, min_length=1, max_length=80)
    period: PeriodName | None = None
    draft: bool | None = None


NOTHING_MADE: Mapping[str, Any] = {
    "made": 0,
    "unchanged": 0,
    "empty": 0,
    "failures": 0,
    "failed": [],
}


class RunJob(JobView):
    """A run over many tenants. `failed` names the first thousand of the `failures`; the invoices
    are in the list of invoices of the `period`."""

    object: Literal["invoice_run.job"] = "invoice_run.job"
    period: str
    tenant_id: str | None
    status: Literal["draft", "final"]
    made: int
    unchanged: int
    empty: int
    failures: int
    failed: list[RunFailure]

    @classmethod
    def of(cls, row: JobRow) -> Self:
        spec = row.spec
        asked = {"period": spec["period"], "tenant_id": spec["tenant"]}
        status = "draft" if spec["draft"] else "final"
        return cls.model_validate(
            {**common(row), **asked, "status": status, **NOTHING_MADE, **row.result}
        )


class RunJobPage(ListPage[RunJob]):
    pass


class VoidBody(Body):
    reason: Reason


class CreditLine(Body):
    """The amount of one line to credit, without tax, which is added."""

    no: int = Field(ge=1, le=100_000)
    amount: Annotated[Decimal, Field(gt=0, max_digits=38, decimal_places=12)]


class CreditNoteBody(Body):
    lines: Annotated[list[CreditLine], Field(min_length=1, max_length=1000)]
    reason: Reason


class PaymentBody(Body):
    """`reference` comes from the payment service; the same reference again is the same payment."""

    amount: Annotated[Decimal, Field(gt=0, max_digits=38, decimal_places=12)]
    reference: Annotated[Text, Field(min_length=1)]
    paid_at: BodyTime | None = None


class ProfileBody(Body):
    """The recipient of a tenant's invoices, effective with the next ones; final invoices do not
    change. Absent fields become empty."""

    name: Text = ""
    address: Lines = ""
    tax_id: Text = ""
    email: Text = ""


class FullProfileBody(ProfileBody):
    """As the tenant's own, with the tax in percent; null: no tax, and no line for it. A month's
    invoice has the tax of the month's last day. `tax_since` is the first day of a changed one,
    today if absent; an earlier day corrects what was recorded before."""

    tax_name: Text = ""
    tax_rate: Annotated[Decimal, Field(ge=0, le=100, decimal_places=4)] | None = None
    tax_since: date | None = None


class BillingProfile(BaseModel):
    object: Literal["billing_profile"] = "billing_profile"
    tenant_id: str
    name: str = ""
    address: str = ""
    tax_id: str = ""
    email: str = ""
    tax_name: str = ""
    tax_rate: str | None = None
    tax_since: date | None = None
    updated_at: datetime | None = None


class SettingsBody(Body):
    """Who sends invoices; absent fields stay as they are. Prefixes apply to future numbers.
    `automatic`: a worker makes a month's invoices final when the grace period has passed."""

    name: Text | None = None
    address: Lines | None = None
    tax_id: Text | None = None
    email: Text | None = None
    number_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9./_-]{0,20}$")] | None = None
    credit_note_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9./_-]{0,20}$")] | None = None
    grace_days: Annotated[int, Field(ge=0, le=60)] | None = None
    payment_days: Annotated[int, Field(ge=0, le=365)] | None = None
    automatic: bool | None = None


class BillingSettings(BaseModel):
    object: Literal["billing_settings"] = "billing_settings"
    name: str
    address: str
    tax_id: str
    email: str
    number_prefix: str
    credit_note_prefix: str
    grace_days: int
    payment_days: int
    automatic: bool
    updated_at: datetime
