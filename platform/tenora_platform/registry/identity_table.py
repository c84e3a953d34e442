"""The row that says which database this is."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Boolean, DateTime, Text, true
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base


class DatabaseIdentityRow(Base):
    """One row, made by the migration. `id` is random. `generation` rises all the time, so that a
    restored copy has a lower one; 0: no object store has been adopted yet. `sweep_all`: the next
    sweep may move however much it finds, as the operator said. `secret_check` follows from the
    server secret under which the database was prepared."""

    __tablename__ = "database_identity"

    singleton: Mapped[bool] = mapped_column(Boolean, primary_key=True, server_default=true())
    id: Mapped[str] = mapped_column(Text)
    generation: Mapped[int] = mapped_column(BigInteger)
    adopted_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    sweep_all: Mapped[bool] = mapped_column(Boolean)
    secret_check: Mapped[str | None] = mapped_column(Text)
