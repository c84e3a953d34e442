"""Rows of usage: one event for each finished sequence with what it costs, sums of them by hour and
day, and the records that could not become one."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Date,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)
_Money = Numeric(38, 12)


class _Rated:
    """The price of a row, set once: NULL while it waits for one, 0 where there was nothing to
    price. `positions` is where its quantities began in the month's, by meter, where the list has
    steps. `seal` is a keyed MAC of all other columns."""

    price_version_no: Mapped[int | None] = mapped_column(Integer)
    amount: Mapped[Decimal | None] = mapped_column(Numeric(38, 12))
    positions: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    seal: Mapped[int] = mapped_column(BigInteger)


class UsageEventRow(_Rated, Base):
    """The engine's UsageRecord, stored once, and what it costs. Partitioned by month of `request`.
    What repeats is in its series. Times in ms from the request's arrival."""

    __tablename__ = "usage_events"

    request: Mapped[UUID] = mapped_column(Uuid, primary_key=True)  # the ULID of the request's id
    sequence: Mapped[int] = mapped_column(Integer, primary_key=True)  # of all of the request's
    tenant_no: Mapped[int] = mapped_column(Integer)
    series_id: Mapped[int] = mapped_column(Integer)
    event_time: Mapped[datetime] = mapped_column(_Time)  # when the sequence ended
    ingested_at: Mapped[datetime] = mapped_column(_Time)
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    cached_tokens: Mapped[int] = mapped_column(Integer)
    output_tokens: Mapped[int] = mapped_column(Integer)
    max_tokens: Mapped[int | None] = mapped_column(Integer)  # asked for
    cold_loads: Mapped[int] = mapped_column(SmallInteger)
    finish_reason: Mapped[str] = mapped_column(Text)
    residency: Mapped[str | None] = mapped_column(Text)
    queue_ms: Mapped[float] = mapped_column(REAL)
    adapter_load_ms: Mapped[float] = mapped_column(REAL)
    first_token_ms: Mapped[float | None] = mapped_column(REAL)
    duration_ms: Mapped[float] = mapped_column(REAL)
    preemptions: Mapped[int] = mapped_column(Integer)
    x_request_id: Mapped[str | None] = mapped_column(Text)  # see ids.x_request_id_of
    sequences: Mapped[int | None] = mapped_column(Integer)  # of its request; NULL: this one alone

    @property
    def arrival_time(self) -> datetime:
        return self.event_time - timedelta(milliseconds=self.duration_ms)


class OccupancyEventRow(_Rated, Base):
    """What was held over a time and not by a request: an adapter in memory, bytes that are
    stored."""

    __tablename__ = "occupancy_events"

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    tenant_no: Mapped[int] = mapped_column(Integer)
    series_id: Mapped[int] = mapped_column(Integer)
    meter: Mapped[str] = mapped_column(Text)
    quantity: Mapped[int] = mapped_column(BigInteger)  # kB*s of residency, kB*h of storage
    begins: Mapped[datetime] = mapped_column(_Time)
    ends: Mapped[datetime] = mapped_column(_Time)
    ingested_at: Mapped[datetime] = mapped_column(_Time)


class UnratedEventRow(Base):
    """An event that waits for a price, of a request or of occupancy; removed when it has one."""

    __tablename__ = "unrated_events"

    no: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    request: Mapped[UUID | None] = mapped_column(Uuid)
    sequence: Mapped[int | None] = mapped_column(Integer)
    occupancy_id: Mapped[UUID | None] = mapped_column(Uuid)
    reason: Mapped[str] = mapped_column(Text)
    since: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class LateRatingRow(Base):
    """When an event was rated that had waited for a price: it counts as booked from then on.
    Occupancy has its id as `request`, and -1 as `sequence`."""

    __tablename__ = "late_ratings"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    request: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    sequence: Mapped[int] = mapped_column(Integer, primary_key=True)
    rated_at: Mapped[datetime] = mapped_column(_Time)


class DeadLetterRow(Base):
    """A record that could not be billed as it was. Kept whole, with the reason; once there is an
    event of its request and sequence, or the occupancy that `request` without a sequence names, it
    has been made good."""

    __tablename__ = "usage_dead_letters"

    event_id: Mapped[str] = mapped_column(Text, primary_key=True)  # the engine's
    request: Mapped[UUID | None] = mapped_column(Uuid)  # NULL: it says none
    sequence: Mapped[int | None] = mapped_column(Integer)
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


class Measures:
    """Quantities of all meters and what they cost, together: a row of sums has whatever moved."""

    uncached_prefill: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_prefill: Mapped[int] = mapped_column(BigInteger, default=0)
    output: Mapped[int] = mapped_column(BigInteger, default=0)
    cold_load: Mapped[int] = mapped_column(BigInteger, default=0)
    device_residency: Mapped[int] = mapped_column(BigInteger, default=0)
    host_residency: Mapped[int] = mapped_column(BigInteger, default=0)
    stored: Mapped[int] = mapped_column(BigInteger, default=0)
    uncached_prefill_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    cached_prefill_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    output_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    cold_load_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    device_residency_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    host_residency_amount: Mapped[Decimal] = mapped_column(_Money, default=0)
    stored_amount: Mapped[Decimal] = mapped_column(_Money, default=0)


class _Sum(Measures):
    """`price_version_no` 0: of events that wait for a price. The first four are counted and not
    priced (`sums.COUNTS`)."""

    tenant_id: Mapped[str] = mapped_column(Text, primary_key=True)
    series_id: Mapped[int] = mapped_column(Integer, primary_key=True)
    price_version_no: Mapped[int] = mapped_column(Integer, primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger, default=0)
    sequences: Mapped[int] = mapped_column(BigInteger, default=0)
    unrated: Mapped[int] = mapped_column(BigInteger, default=0)
    charged_nanos: Mapped[int] = mapped_column(BigInteger, default=0)


class UsageHourRow(_Sum, Base):
    """What one series used in an hour (UTC), at one price."""

    __tablename__ = "usage_hours"

    hour: Mapped[datetime] = mapped_column(_Time, primary_key=True)


class UsageDayRow(_Sum, Base):
    """The same of a day."""

    __tablename__ = "usage_days"

    day: Mapped[date] = mapped_column(Date, primary_key=True)


class EngineOutboxRow(Base):
    """One outbox of an engine's, for as long as anybody wants to know. `copies` stands for what was
    stored from the API's copies."""

    __tablename__ = "engine_outboxes"

    engine: Mapped[str] = mapped_column(Text, primary_key=True)  # eng_...
    whole_since: Mapped[date] = mapped_column(Date)  # of days before it something may be missing
    first_heard_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    last_heard_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class EngineTotalRow(Base):
    """All that one engine has metered of a tenant in a UTC day, as it last said."""

    __tablename__ = "engine_totals"

    engine: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    sequences: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    cold_loads: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class UsageArchiveRow(Base):
    """One file of a month's events in the object store, as it was proved when it was written."""

    __tablename__ = "usage_archives"

    month: Mapped[date] = mapped_column(Date, primary_key=True)  # its first day
    part: Mapped[int] = mapped_column(Integer, primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(Text)  # of the file
    bytes: Mapped[int] = mapped_column(BigInteger)
    rows: Mapped[int] = mapped_column(BigInteger)
    sums: Mapped[dict[str, Any]] = mapped_column(JSONB)
    first_event: Mapped[datetime] = mapped_column(_Time)  # by event_time
    last_event: Mapped[datetime] = mapped_column(_Time)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    dropped_at: Mapped[datetime | None] = mapped_column(_Time)  # since when only the file has them
