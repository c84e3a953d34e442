"""Rows of prices, and of how far tenants are in their tiers. Money is NUMERIC and Decimal
everywhere; nothing is a float."""

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
    Text,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class PriceVersionRow(Base):
    """One price list from `effective_from` until (not including) `effective_to`. NULL model, plan,
    tenant or adapter means any; the more specific list wins. `minimum` is of a month's invoice,
    `included` what each month costs nothing. With `withdrawn_at` it is as if it had never been."""

    __tablename__ = "price_versions"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    model: Mapped[str | None] = mapped_column(Text)
    no: Mapped[int] = mapped_column(Integer, Identity(always=True), unique=True)
    plan: Mapped[str | None] = mapped_column(Text)
    tenant_id: Mapped[str | None] = mapped_column(Text, ForeignKey("tenants.id"))
    adapter_id: Mapped[str | None] = mapped_column(Text)
    minimum: Mapped[Decimal] = mapped_column(Numeric(38, 12), server_default="0")
    included: Mapped[Decimal] = mapped_column(Numeric(38, 12), server_default="0")
    currency: Mapped[str] = mapped_column(Text)
    effective_from: Mapped[datetime] = mapped_column(_Time)
    effective_to: Mapped[datetime | None] = mapped_column(_Time)
    withdrawn_at: Mapped[datetime | None] = mapped_column(_Time)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class PriceRow(Base):
    """The price of a million units of one meter, from so many in a month on. Class "": of any that
    has none of its own."""

    __tablename__ = "prices"

    price_version_id: Mapped[str] = mapped_column(
        Text, ForeignKey("price_versions.id"), primary_key=True
    )
    meter: Mapped[str] = mapped_column(Text, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True, server_default="")
    from_quantity: Mapped[int] = mapped_column(BigInteger, primary_key=True, server_default="0")
    per_million: Mapped[Decimal] = mapped_column(Numeric(20, 6))


class VolumeRow(Base):
    """What a tenant has used in a month of one meter, model and class under one price version, so
    far as it was rated by tiers (`rating.Volume`)."""

    __tablename__ = "usage_volumes"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    month: Mapped[date] = mapped_column(Date, primary_key=True)
    price_version_no: Mapped[int] = mapped_column(
        Integer, ForeignKey("price_versions.no"), primary_key=True
    )
    model: Mapped[str] = mapped_column(Text, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True)
    meter: Mapped[str] = mapped_column(Text, primary_key=True)
    quantity: Mapped[int] = mapped_column(BigInteger)
