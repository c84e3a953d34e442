"""Rows of evaluations: what is to be asked of which versions, and what each answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, Float, ForeignKey, Integer, Text, func, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base
from tenora_platform.evaluations.schemas import State
from tenora_platform.evaluations.scoring import Scoring

_Time = DateTime(timezone=True)


class EvaluationRow(Base):
    """`subjects` are the versions in the order that was asked for, as `schemas.Subject`s."""

    __tablename__ = "evaluations"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    key_id: Mapped[str] = mapped_column(Text)  # who asked for it, and under whose limits
    adapter: Mapped[str] = mapped_column(Text)
    subjects: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    scoring: Mapped[Scoring] = mapped_column(Text)
    max_tokens: Mapped[int] = mapped_column(Integer)
    items: Mapped[int] = mapped_column(Integer)
    state: Mapped[State] = mapped_column(Text, server_default="queued")
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    served_at: Mapped[datetime | None] = mapped_column(_Time)  # its turn came last
    not_before: Mapped[datetime | None] = mapped_column(_Time)  # a limit has no room until then
    ended_at: Mapped[datetime | None] = mapped_column(_Time)
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")  # turns failed in a row


class EvaluationItemRow(Base):
    __tablename__ = "evaluation_items"

    evaluation_id: Mapped[str] = mapped_column(Text, ForeignKey("evaluations.id"), primary_key=True)
    no: Mapped[int] = mapped_column(Integer, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    item: Mapped[dict[str, Any]] = mapped_column(JSONB)


class EvaluationAnswerRow(Base):
    """One item asked of one subject. `asking` from before it is asked until something is known:
    one that a crash left so is asked anew, and that is the platform's to pay. `place` and `total`
    are of a loglikelihood that is not whole yet: so many tokens of it, and their sum."""

    __tablename__ = "evaluation_answers"

    evaluation_id: Mapped[str] = mapped_column(Text, ForeignKey("evaluations.id"), primary_key=True)
    no: Mapped[int] = mapped_column(Integer, primary_key=True)
    subject: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    answer: Mapped[str | None] = mapped_column(Text)
    score: Mapped[float | None] = mapped_column(Float)
    error: Mapped[str | None] = mapped_column(Text)
    request_ids: Mapped[list[str]] = mapped_column(JSONB, server_default="[]")
    prompt_tokens: Mapped[int] = mapped_column(Integer, server_default="0")
    output_tokens: Mapped[int] = mapped_column(Integer, server_default="0")
    asking: Mapped[bool] = mapped_column(server_default=true())
    place: Mapped[int] = mapped_column(Integer, server_default="0")
    total: Mapped[float] = mapped_column(Float, server_default="0")
    answered_at: Mapped[datetime | None] = mapped_column(_Time)
