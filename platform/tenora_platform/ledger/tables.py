"""Rows of the ledger: a set of books for each tenant. Append-only but for the balances, which are a
projection. The database refuses a transaction whose entries do not add up to 0."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from sqlalchemy import (
    BigInteger,
    Date,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    Numeric,
    SmallInteger,
    Text,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)
_Money = Numeric(38, 12)


class LedgerAccountRow(Base):
    """One account of a tenant's books, in one currency."""

    __tablename__ = "ledger_accounts"

    id: Mapped[int] = mapped_column(Integer, Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(Text)  # "receivable", "revenue:output", ...
    currency: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class LedgerTransactionRow(Base):
    """One thing that happened, once for its `kind` and `reference`. `seq` counts a tenant's from 1;
    `hash` covers it, its entries and the hash before it."""

    __tablename__ = "ledger_transactions"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    seq: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    reference: Mapped[str] = mapped_column(Text)
    currency: Mapped[str] = mapped_column(Text)
    day: Mapped[date] = mapped_column(Date)  # that it belongs to, UTC
    reverses: Mapped[str | None] = mapped_column(Text, ForeignKey("ledger_transactions.id"))
    note: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time)
    prev_hash: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(Text)


class LedgerEntryRow(Base):
    """Debit above 0, credit below."""

    __tablename__ = "ledger_entries"

    transaction_id: Mapped[str] = mapped_column(
        Text, ForeignKey("ledger_transactions.id"), primary_key=True
    )
    line: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    account_id: Mapped[int] = mapped_column(Integer, ForeignKey("ledger_accounts.id"))
    amount: Mapped[Decimal] = mapped_column(_Money)


class LedgerBalanceRow(Base):
    """What an account's entries add up to; can be made again from them."""

    __tablename__ = "ledger_balances"

    account_id: Mapped[int] = mapped_column(
        Integer, ForeignKey("ledger_accounts.id"), primary_key=True
    )
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    balance: Mapped[Decimal] = mapped_column(_Money)
    entries: Mapped[int] = mapped_column(BigInteger)


class LedgerDueRow(Base):
    """A day whose usage has moved since the ledger last had it."""

    __tablename__ = "ledger_due"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    since: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
