"""Rows of the audit log."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, DateTime, Text
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base


class AuditRow(Base):
    """One thing somebody did. `chain` is a tenant's id or "operator"; within a chain `seq` counts
    from 1 and `hash` covers the entry and the hash before it."""

    __tablename__ = "audit_logs"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(Text)
    chain: Mapped[str] = mapped_column(Text)
    seq: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    actor: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(Text)
    target: Mapped[str] = mapped_column(Text)
    details: Mapped[str] = mapped_column(Text)  # canonical JSON, the very text that was hashed
    request_id: Mapped[str | None] = mapped_column(Text)
    prev_hash: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(Text)


class AuditHeadRow(Base):
    """The last entry of a chain, under a seal."""

    __tablename__ = "audit_heads"

    chain: Mapped[str] = mapped_column(Text, primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(Text)
    seal: Mapped[str] = mapped_column(Text)


class AuditVerifiedRow(Base):
    """The last entry of a chain that a verification found right, under a seal. Apart from the
    chain's end, so that who writes to the chain waits for no verification."""

    __tablename__ = "audit_verified"

    chain: Mapped[str] = mapped_column(Text, primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(Text)
    seal: Mapped[str] = mapped_column(Text)
