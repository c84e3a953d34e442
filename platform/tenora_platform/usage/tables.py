"""Rows of usage: one append-only event for each finished sequence, and the records that could not
become one. They know no prices."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    Date,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    Numeric,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class UsageEventRow(Base):
    """The engine's UsageRecord, stored once. `event_time` is when the sequence ended."""

    __tablename__ = "usage_events"

    event_id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    request_id: Mapped[str] = mapped_column(Text)  # the answer's id: chatcmpl_...
    x_request_id: Mapped[str | None] = mapped_column(Text)  # of the HTTP answer; old ones: NULL
    sequence: Mapped[int] = mapped_column(Integer)
    api_key_id: Mapped[str | None] = mapped_column(Text)
    model: Mapped[str] = mapped_column(Text)
    plan: Mapped[str | None] = mapped_column(Text)
    adapter_version_id: Mapped[str | None] = mapped_column(Text)
    adapter_digest: Mapped[str | None] = mapped_column(Text)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    tier: Mapped[str] = mapped_column(Text)
    finish_reason: Mapped[str] = mapped_column(Text)
    residency: Mapped[str | None] = mapped_column(Text)
    queue_ms: Mapped[float] = mapped_column(Double)
    adapter_load_ms: Mapped[float] = mapped_column(Double)
    arrival_time: Mapped[datetime] = mapped_column(_Time)
    first_token_time: Mapped[datetime | None] = mapped_column(_Time)
    event_time: Mapped[datetime] = mapped_column(_Time)
    ingested_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class DeadLetterRow(Base):
    """A record that could not be billed as it was. Kept whole, with the reason; once there is an
    event of the same id, it has been made good."""

    __tablename__ = "usage_dead_letters"

    event_id: Mapped[str] = mapped_column(Text, primary_key=True)
    record: Mapped[dict[str, Any]] = mapped_column(JSONB)  # to read; `raw` is exact
    raw: Mapped[bytes | None] = mapped_column(LargeBinary)  # msgpack; of older ones NULL
    reason: Mapped[str] = mapped_column(Text)
    received_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class UsageSeriesRow(Base):
    """Everything of events that repeats, once. `key` is a digest of it all."""

    __tablename__ = "usage_series"

    id: Mapped[int] = mapped_column(Integer, Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    key: Mapped[bytes] = mapped_column(LargeBinary)
    kind: Mapped[str] = mapped_column(Text)  # chatcmpl, cmpl, ...; residency, stored
    model: Mapped[str] = mapped_column(Text)  # the base model's id
    asked_model: Mapped[str | None] = mapped_column(Text)  # as the client wrote it
    alias: Mapped[str | None] = mapped_column(Text)
    adapter_id: Mapped[str | None] = mapped_column(Text)
    adapter_version_id: Mapped[str | None] = mapped_column(Text)
    adapter_digest: Mapped[str | None] = mapped_column(Text)  # what really ran
    api_key_id: Mapped[str | None] = mapped_column(Text)
    plan: Mapped[str | None] = mapped_column(Text)
    class_: Mapped[str] = mapped_column("class", Text)  # that really served; "" of storage
    asked_class: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class _Sum:
    """`price_version_no` 0: of events that wait for a price."""

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    series_id: Mapped[int] = mapped_column(Integer, ForeignKey("usage_series.id"), primary_key=True)
    meter: Mapped[str] = mapped_column(Text, primary_key=True)
    price_version_no: Mapped[int] = mapped_column(Integer, primary_key=True)
    quantity: Mapped[int] = mapped_column(BigInteger)
    amount: Mapped[Decimal] = mapped_column(Numeric(38, 12))


class UsageHourRow(_Sum, Base):
    """What one series used in an hour (UTC) of one meter, at one price."""

    __tablename__ = "usage_hours"

    hour: Mapped[datetime] = mapped_column(_Time, primary_key=True)


class UsageDayRow(_Sum, Base):
    """The same of a day."""

    __tablename__ = "usage_days"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
