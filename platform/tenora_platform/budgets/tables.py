"""Rows of prepaid credit and of account budgets. What has been spent of them follows from usage,
and is not here."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

from sqlalchemy import ARRAY, DateTime, ForeignKey, Numeric, SmallInteger, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

GrantKind = Literal["granted", "bought"]
_Time = DateTime(timezone=True)


class CreditGrantRow(Base):
    """Money that a tenant may spend until `expires_at` (NULL: for ever). `lapsed` is what was left
    of it when it expired."""

    __tablename__ = "credit_grants"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    amount: Mapped[Decimal] = mapped_column(Numeric(38, 12))
    note: Mapped[str | None] = mapped_column(Text)
    kind: Mapped[str] = mapped_column(Text, server_default="granted")  # a GrantKind
    currency: Mapped[str] = mapped_column(Text, server_default="USD")
    expires_at: Mapped[datetime | None] = mapped_column(_Time)
    lapsed: Mapped[Decimal | None] = mapped_column(Numeric(38, 12))
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class AccountBudgetRow(Base):
    """What a tenant wants to spend in a month (UTC) at most, in all. At each of `thresholds`,
    percent of `amount`, an event tells it; beyond a `hard` one its requests are refused."""

    __tablename__ = "account_budgets"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    amount: Mapped[Decimal] = mapped_column(Numeric(38, 12))
    currency: Mapped[str] = mapped_column(Text)
    hard: Mapped[bool]
    thresholds: Mapped[list[int]] = mapped_column(ARRAY(SmallInteger))
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
