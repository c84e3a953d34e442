"""Rows of jobs: what was asked for, how far it is, and what it found. The operator's alone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class JobRow(Base):
    """One job: waiting for a worker, running, done, failed or cancelled. It goes on from `place`,
    whoever works on it; `worker` and `beat_at` say who does, and when it last said so. `attempts`
    have failed since it last came forward; none is made before `not_before`."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    kind: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(Text)
    asked_by: Mapped[str] = mapped_column(Text)
    key_prefix: Mapped[str | None] = mapped_column(Text)  # of the admin key's secret, if one asked
    spec: Mapped[dict[str, Any]] = mapped_column(JSONB)
    place: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    done: Mapped[int] = mapped_column(Integer, server_default="0")
    total: Mapped[int | None] = mapped_column(Integer)
    result: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default="{}")
    error: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    not_before: Mapped[datetime | None] = mapped_column(_Time)
    waiting_for: Mapped[str | None] = mapped_column(Text)  # in words
    worker: Mapped[str | None] = mapped_column(Text)
    asked_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    started_at: Mapped[datetime | None] = mapped_column(_Time)
    beat_at: Mapped[datetime | None] = mapped_column(_Time)
    finished_at: Mapped[datetime | None] = mapped_column(_Time)
