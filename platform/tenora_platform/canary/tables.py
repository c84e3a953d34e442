"""Rows of the canary: its tenants, what it was answered first, and its rounds. The operator's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, DateTime, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class CanaryRow(Base):
    """Which tenant is which: `canary`, and `neighbour`, whose things the canary must not see."""

    __tablename__ = "canaries"

    role: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class CanaryAnswerRow(Base):
    """The first answer of one base model, as it was served, to what is always asked."""

    __tablename__ = "canary_answers"

    served_as: Mapped[str] = mapped_column(Text, primary_key=True)
    asked: Mapped[str] = mapped_column(Text, primary_key=True)
    answer: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class CanaryRoundRow(Base):
    """One round: each check with what was wrong, if anything was."""

    __tablename__ = "canary_rounds"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    ok: Mapped[bool] = mapped_column(Boolean)
    checks: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
