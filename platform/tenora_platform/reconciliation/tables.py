"""Rows of reconciliations: what was asked for and what was found, and the days that were found
right. The operator's alone."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import Date, DateTime, Integer, LargeBinary, Text, func
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


class ReconciledDayRow(Base):
    """A tenant's day that a run found right. `digest`, keyed, is of its sums as they were then:
    events are stored and rated together with their sums, so while these stay, so does the rest."""

    __tablename__ = "reconciled_days"

    of_tenant: Mapped[int] = mapped_column(Integer, primary_key=True)  # its number
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    checked_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
