"""Rows of receipts: the keys that sign them, what tenants have chosen to be kept or stored, and
what is kept and stored."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, Integer, LargeBinary, SmallInteger, Text, false, func
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class SigningKeyRow(Base):
    """An Ed25519 key by its thumbprint. It signs from `signs_from` until the next one does;
    `sealed` is its private part under the server secret, gone once it signs no more."""

    __tablename__ = "signing_keys"

    kid: Mapped[str] = mapped_column(Text, primary_key=True)
    public_key: Mapped[bytes] = mapped_column(LargeBinary)
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    signs_from: Mapped[datetime] = mapped_column(_Time)
    revoked_at: Mapped[datetime | None] = mapped_column(_Time)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class TenantSettingsRow(Base):
    """What a tenant has chosen for itself; without a row, nothing. `keep_contents_days` NULL: no
    prompt and no answer is kept; `stored_response_days` NULL: no response is stored.
    `draft_from_answers`: see `Tenant.keeps_answers` of the engine."""

    __tablename__ = "tenant_settings"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    keep_contents_days: Mapped[int | None] = mapped_column(SmallInteger)
    stored_response_days: Mapped[int | None] = mapped_column(SmallInteger)
    draft_from_answers: Mapped[bool] = mapped_column(server_default=false())
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class KeptContentsRow(Base):
    """One request's prompts and answers: JSON, compressed, then encrypted. The operator's role may
    delete it and cannot read `sealed`."""

    __tablename__ = "kept_contents"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    request_id: Mapped[str] = mapped_column(Text, primary_key=True)  # the answer's id
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    bytes: Mapped[int] = mapped_column(Integer)  # of the JSON
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(_Time)


class StoredResponseRow(Base):
    """One response that its client wants to come back to: its input's items and the response, each
    JSON, sealed as kept contents are. The operator's role may delete it and reads neither."""

    __tablename__ = "stored_responses"

    tenant_id: Mapped[str] = mapped_column(Text, primary_key=True)
    id: Mapped[str] = mapped_column(Text, primary_key=True)
    made_by: Mapped[str] = mapped_column(Text)  # a key's id, or a person's
    previous_id: Mapped[str | None] = mapped_column(Text)  # which may be gone
    input: Mapped[bytes] = mapped_column(LargeBinary)
    response: Mapped[bytes] = mapped_column(LargeBinary)
    bytes: Mapped[int] = mapped_column(Integer)  # of both JSONs
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(_Time)
