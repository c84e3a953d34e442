"""Rows of waits: sums by minute, which the operator alone may read, for they name tenants to each
other; and single requests', once with the others' names and once without."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DateTime, Double, Integer, Text, Uuid, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class WaitMinuteRow(Base):
    """What sequences of `waiter` waited in a minute; each of them counts in the minute in which it
    had waited a millisecond."""

    __tablename__ = "wait_minutes"

    minute: Mapped[datetime] = mapped_column(_Time, primary_key=True)
    waiter: Mapped[str] = mapped_column(Text, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True)
    cause: Mapped[str] = mapped_column(Text, primary_key=True)
    other: Mapped[str] = mapped_column(Text, primary_key=True)  # "": no other tenant's doing
    seconds: Mapped[float] = mapped_column(Double)
    sequences: Mapped[int] = mapped_column(Integer)


class ShareMinuteRow(Base):
    """Service charged in a minute, in tokens prefilled by the base model."""

    __tablename__ = "share_minutes"

    minute: Mapped[datetime] = mapped_column(_Time, primary_key=True)
    served: Mapped[str] = mapped_column(Text, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True)
    service: Mapped[float] = mapped_column(Double)


class GapMinuteRow(Base):
    """Of a minute in which several tenants waited in a class, the moment at which the service gap
    was nearest to its bound."""

    __tablename__ = "gap_minutes"

    minute: Mapped[datetime] = mapped_column(_Time, primary_key=True)
    class_: Mapped[str] = mapped_column("class", Text, primary_key=True)
    gap: Mapped[float] = mapped_column(Double)
    bound: Mapped[float] = mapped_column(Double)


class WaitMarkRow(Base):
    """The totals of one start of an engine as they were last added to the minutes."""

    __tablename__ = "wait_marks"

    started: Mapped[str] = mapped_column(Text, primary_key=True)
    seen_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    totals: Mapped[dict[str, Any]] = mapped_column(JSONB)


class RequestWaitRow(Base):
    """What a sequence waited, in milliseconds by cause; its tenant may read it."""

    __tablename__ = "request_waits"

    request: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    sequence: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text)
    kept_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    causes: Mapped[dict[str, float]] = mapped_column(JSONB)


class RequestWaitPartsRow(Base):
    """The same with whose doing it was: [cause, other tenant, milliseconds] each."""

    __tablename__ = "request_wait_parts"

    request: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    sequence: Mapped[int] = mapped_column(Integer, primary_key=True)
    kept_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    parts: Mapped[list[list[Any]]] = mapped_column(JSONB)
