"""Rows of calls of the inference API that were answered with an error."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, Integer, SmallInteger, Text
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class RejectedCallRow(Base):
    """One call, or (`last_at` set) several alike of one minute. `tenant_id` "": whose it was is not
    known. Nothing of what a call asks is in it but the name of the model and of the field."""

    __tablename__ = "rejected_calls"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(_Time)
    last_at: Mapped[datetime | None] = mapped_column(_Time)
    calls: Mapped[int] = mapped_column(Integer)
    route: Mapped[str] = mapped_column(Text)
    status: Mapped[int] = mapped_column(SmallInteger)
    code: Mapped[str | None] = mapped_column(Text)
    param: Mapped[str | None] = mapped_column(Text)
    message: Mapped[str] = mapped_column(Text)
    model: Mapped[str | None] = mapped_column(Text)
    api_key_id: Mapped[str | None] = mapped_column(Text)
    request_id: Mapped[str | None] = mapped_column(Text)
