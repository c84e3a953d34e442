"""Rows of answers that may be asked for again."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, LargeBinary, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base


class IdempotencyRow(Base):
    """One `Idempotency-Key` of one caller. `answer` is encrypted, for it may hold a new secret;
    NULL while the request runs, and for ever if its process died."""

    __tablename__ = "idempotency_keys"

    caller_id: Mapped[str] = mapped_column(
        Text, primary_key=True
    )  # a key's, an actor, or person@tenant
    key: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(Text)  # NULL: the operator's
    target: Mapped[str] = mapped_column(Text)  # path and query
    body_sha256: Mapped[str | None] = mapped_column(Text)
    answer: Mapped[bytes | None] = mapped_column(LargeBinary)
    began_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
