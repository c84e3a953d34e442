"""Rows of probes: which version is to be asked, what came of it, and prompts of tenants' own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, DateTime, ForeignKey, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class AdapterProbeRow(Base):
    """One of each version that was ever to be asked; the database makes it as the version becomes
    active. `findings` are of the last time that it was."""

    __tablename__ = "adapter_probes"

    version_id: Mapped[str] = mapped_column(
        Text, ForeignKey("adapter_versions.id"), primary_key=True
    )
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    state: Mapped[str] = mapped_column(Text)  # waiting, done, failed
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    next_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    error: Mapped[str | None] = mapped_column(Text)
    findings: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    probed_at: Mapped[datetime | None] = mapped_column(_Time)


class AdapterProbePromptsRow(Base):
    __tablename__ = "adapter_probe_prompts"

    adapter_id: Mapped[str] = mapped_column(Text, ForeignKey("adapters.id"), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    prompts: Mapped[list[str]] = mapped_column(ARRAY(Text))
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
