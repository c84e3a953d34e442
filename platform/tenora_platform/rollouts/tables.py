"""Rows of changes of aliases, staged roll-outs, and what shadows answered."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, DateTime, ForeignKey, Identity, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)
_Json = JSONB(none_as_null=True)


class _OfAlias:
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    adapter_id: Mapped[str] = mapped_column(Text)
    alias: Mapped[str] = mapped_column(Text)


class AliasChangeRow(_OfAlias, Base):
    """One change of an alias: `before` and `after` are `{"targets", "shadow"}`, NULL where there
    was no alias. Written once, in the transaction of the change."""

    __tablename__ = "alias_changes"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    no: Mapped[int] = mapped_column(BigInteger, Identity(always=True))  # ids know clocks only
    action: Mapped[str] = mapped_column(Text)
    before: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    after: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    actor: Mapped[str] = mapped_column(Text)
    reason: Mapped[str | None] = mapped_column(Text)
    rollout_id: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class RolloutRow(_OfAlias, Base):
    """A version on its way through the stages; one at a time runs for an alias. `before` are the
    targets that it comes back to, `requests_before` what the version had answered when its stage
    began (NULL: Redis did not say), `numbers` what decided its end."""

    __tablename__ = "rollouts"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    version: Mapped[int] = mapped_column(Integer)
    before: Mapped[list[dict[str, int]]] = mapped_column(JSONB)
    stages: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    guard: Mapped[dict[str, Any]] = mapped_column(JSONB)
    state: Mapped[str] = mapped_column(Text, server_default="running")
    stage: Mapped[int] = mapped_column(Integer, server_default="0")
    stage_began_at: Mapped[datetime] = mapped_column(_Time)
    requests_before: Mapped[int | None] = mapped_column(BigInteger)
    held_since: Mapped[datetime | None] = mapped_column(_Time)
    held_reason: Mapped[str | None] = mapped_column(Text)
    numbers: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    reason: Mapped[str | None] = mapped_column(Text)
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time)
    ended_at: Mapped[datetime | None] = mapped_column(_Time)


class ShadowAnswerRow(_OfAlias, Base):
    """What a shadow's version answered beside what was sent: digests (keyed), tokens and times of
    both, no text. `shadow_answer` NULL: it failed, `error` says why."""

    __tablename__ = "shadow_answers"

    id: Mapped[str] = mapped_column(Text, primary_key=True)  # of the shadow's request
    request_id: Mapped[str] = mapped_column(Text)
    version: Mapped[int] = mapped_column(Integer)
    shadow_version: Mapped[int] = mapped_column(Integer)
    greedy: Mapped[bool] = mapped_column(Boolean)
    answer: Mapped[dict[str, Any]] = mapped_column(JSONB)
    shadow_answer: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    error: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
