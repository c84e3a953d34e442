"""Rows of pins: adapter versions that the operator keeps on the device."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base


class AdapterPinRow(Base):
    __tablename__ = "adapter_pins"

    version_id: Mapped[str] = mapped_column(
        Text, ForeignKey("adapter_versions.id"), primary_key=True
    )
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    pinned_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    pinned_by: Mapped[str] = mapped_column(Text)  # as in the audit log
