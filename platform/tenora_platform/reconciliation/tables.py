"""Rows of reconciliations: what was asked for and what was found, and marks of days that moved. The
operator's alone."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import BigInteger, Date, DateTime, Identity, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class ReconciliationRow(Base):
    """One run, waiting for a worker, running, done or failed. `only_tenant`, `first_day` and
    `last_day` (UTC, inclusive) bound what is looked at; NULL does not."""

    __tablename__ = "reconciliations"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    mode: Mapped[str] = mapped_column(Text)  # recent, full
    state: Mapped[str] = mapped_column(Text)
    asked_by: Mapped[str] = mapped_column(Text)
    only_tenant: Mapped[str | None] = mapped_column(Text)
    first_day: Mapped[date | None] = mapped_column(Date)
    last_day: Mapped[date | None] = mapped_column(Date)
    asked_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    started_at: Mapped[datetime | None] = mapped_column(_Time)
    finished_at: Mapped[datetime | None] = mapped_column(_Time)
    difference_count: Mapped[int | None] = mapped_column(Integer)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    error: Mapped[str | None] = mapped_column(Text)
    settled_through: Mapped[date | None] = mapped_column(Date)  # of every tenant's days


class MovedDayRow(Base):
    """A mark on a day that was over when its sums, its engines' totals or its postings moved, made
    by triggers on these, or whose last look found a difference. Gone once it is found right."""

    __tablename__ = "moved_days"

    no: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant: Mapped[str] = mapped_column(Text)
    day: Mapped[date] = mapped_column(Date)
