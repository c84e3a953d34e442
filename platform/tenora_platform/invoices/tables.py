"""Rows of invoices, of their lines and what usage is behind them, of payments, and of whom they are
from and for. The database keeps what is final as it is."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    Numeric,
    SmallInteger,
    Text,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base
from tenora_platform.invoices.lines import LineKind
from tenora_platform.usage.tables import Measures

_Time = DateTime(timezone=True)
_TODAY = text("(now() AT TIME ZONE 'UTC')::date")
_Money = Numeric(38, 12)


class _Party:
    """What an invoice says of a side; all may be empty."""

    name: Mapped[str] = mapped_column(Text, server_default="")
    address: Mapped[str] = mapped_column(Text, server_default="")  # lines
    tax_id: Mapped[str] = mapped_column(Text, server_default="")
    email: Mapped[str] = mapped_column(Text, server_default="")
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class BillingSettingsRow(_Party, Base):
    """Who sends invoices, and when; there is one."""

    __tablename__ = "billing_settings"

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    number_prefix: Mapped[str] = mapped_column(Text, server_default="INV-")
    credit_note_prefix: Mapped[str] = mapped_column(Text, server_default="CN-")
    grace_days: Mapped[int] = mapped_column(SmallInteger, server_default="3")
    payment_days: Mapped[int] = mapped_column(SmallInteger, server_default="14")
    automatic: Mapped[bool] = mapped_column(Boolean, server_default=false())


class BillingProfileRow(_Party, Base):
    """Whom a tenant's invoices are for. Tax is the operator's to say."""

    __tablename__ = "billing_profiles"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    tax_name: Mapped[str] = mapped_column(Text, server_default="")
    tax_rate: Mapped[Decimal | None] = mapped_column(Numeric(7, 4))  # percent
    tax_since: Mapped[date] = mapped_column(  # the first day on which it applies
        Date, server_default=_TODAY
    )


class TenantTaxRow(Base):
    """The tax that a tenant's invoices have from the day `since`, until a later row says otherwise.
    A trigger on `billing_profiles` writes it, whoever changes the tax."""

    __tablename__ = "tenant_taxes"

    no: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    since: Mapped[date] = mapped_column(Date)
    noted_on: Mapped[date] = mapped_column(Date, server_default=_TODAY)
    tax_name: Mapped[str] = mapped_column(Text)
    tax_rate: Mapped[Decimal | None] = mapped_column(Numeric(7, 4))  # percent; NULL: no tax


class InvoiceNumberRow(Base):
    """The last number of a series. Its row is locked until the number is used: no gaps."""

    __tablename__ = "invoice_numbers"

    series: Mapped[str] = mapped_column(Text, primary_key=True)
    last: Mapped[int] = mapped_column(BigInteger)


class InvoiceRow(Base):
    """An invoice of a month, or a credit note to one. A draft has no number; what has one stays,
    but that an invoice may become void."""

    __tablename__ = "invoices"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(Text)  # invoice, credit_note
    status: Mapped[str] = mapped_column(Text)  # draft, final, void
    period: Mapped[date] = mapped_column(Date)  # the month's first day
    currency: Mapped[str] = mapped_column(Text)
    number: Mapped[str | None] = mapped_column(Text)
    of_invoice: Mapped[str | None] = mapped_column(Text, ForeignKey("invoices.id"))
    subtotal: Mapped[Decimal] = mapped_column(_Money, server_default="0")
    tax: Mapped[Decimal] = mapped_column(_Money, server_default="0")
    total: Mapped[Decimal] = mapped_column(_Money, server_default="0")
    seller: Mapped[dict[str, Any]] = mapped_column(JSONB)
    buyer: Mapped[dict[str, Any]] = mapped_column(JSONB)
    terms: Mapped[dict[str, Any]] = mapped_column(JSONB)
    reason: Mapped[str | None] = mapped_column(Text)
    ledger_transaction_id: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time)
    finalised_at: Mapped[datetime | None] = mapped_column(_Time)
    due_at: Mapped[datetime | None] = mapped_column(_Time)
    voided_at: Mapped[datetime | None] = mapped_column(_Time)
    taken_at: Mapped[datetime | None] = mapped_column(_Time)  # usage booked by then; see `booking`


class InvoiceLineRow(Base):
    """`amount` in whole minor units, `exact` as the books have it. Lines of usage say of which."""

    __tablename__ = "invoice_lines"

    invoice_id: Mapped[str] = mapped_column(Text, primary_key=True)
    no: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    kind: Mapped[LineKind] = mapped_column(Text)
    amount: Mapped[Decimal] = mapped_column(_Money)
    exact: Mapped[Decimal] = mapped_column(_Money)
    month: Mapped[date | None] = mapped_column(Date)
    meter: Mapped[str | None] = mapped_column(Text)
    class_: Mapped[str | None] = mapped_column("class", Text)
    price_version_no: Mapped[int | None] = mapped_column(Integer)
    quantity: Mapped[Decimal | None] = mapped_column(Numeric(38, 0))
    prices: Mapped[list[dict[str, Any]] | None] = mapped_column(JSONB)
    of_line: Mapped[int | None] = mapped_column(Integer)


class InvoiceUsageRow(Measures, Base):
    """What of one sum by day an invoice has had: the lines of usage are its sums."""

    __tablename__ = "invoice_usage"

    invoice_id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    series_id: Mapped[int] = mapped_column(Integer, primary_key=True)
    price_version_no: Mapped[int] = mapped_column(Integer, primary_key=True)


class InvoicePaymentRow(Base):
    """Money that came in for an invoice, once for each `reference`."""

    __tablename__ = "invoice_payments"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    invoice_id: Mapped[str] = mapped_column(Text)
    amount: Mapped[Decimal] = mapped_column(_Money)
    reference: Mapped[str] = mapped_column(Text)
    paid_at: Mapped[datetime] = mapped_column(_Time)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
