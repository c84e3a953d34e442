"""Rows of admin keys: the operator's alone, no tenant's session can read them."""

from __future__ import annotations

from sqlalchemy import Text
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base
from tenora_platform.kept_keys import KeptKey
from tenora_platform.operators.roles import Role


class AdminKeyRow(KeptKey, Base):
    """One admin key that was made by the API."""

    __tablename__ = "admin_keys"

    role: Mapped[Role] = mapped_column(Text)
