"""Rows of adapters, versions, aliases and uploads. All belong to a tenant; a deleted adapter keeps
its row, because usage points at its versions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BigInteger, DateTime, ForeignKey, Integer, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, column_property, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class AdapterRow(Base):
    __tablename__ = "adapters"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(Text)
    next_version: Mapped[int] = mapped_column(Integer, server_default="1")
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    deleted_at: Mapped[datetime | None] = mapped_column(_Time)


class AdapterVersionRow(Base):
    """`digest`, `rank` and `target_modules` are known once the check has accepted it. Until its
    upload has been given back, `staging_key` says where it lies, and `upload_id` of which resumable
    upload the parts are its weights, if they are. `check_attempts` are checks that were begun and
    whose end nobody saw. `bytes` are those of all that is stored, `draft_layer_bytes` of them
    its draft layer's, if it has one. `chat_template` is the adapter's own, if it has one; it is
    read by name alone."""

    __tablename__ = "adapter_versions"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    adapter_id: Mapped[str] = mapped_column(Text)
    number: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(Text)
    bytes: Mapped[int] = mapped_column(BigInteger)
    staging_key: Mapped[str | None] = mapped_column(Text)
    upload_id: Mapped[str | None] = mapped_column(Text)
    weights_sha256: Mapped[str] = mapped_column(Text)
    digest: Mapped[str | None] = mapped_column(Text)
    rank: Mapped[int | None] = mapped_column(Integer)
    target_modules: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    report: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    chat_template: Mapped[str | None] = mapped_column(Text, deferred=True, deferred_raiseload=True)
    has_chat_template: Mapped[bool] = column_property(chat_template.is_not(None))
    draft_layer_digest: Mapped[str | None] = mapped_column(Text)
    draft_layer_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_by: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    check_attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    check_begun_at: Mapped[datetime | None] = mapped_column(_Time)
    activated_at: Mapped[datetime | None] = mapped_column(_Time)
    deprecated_at: Mapped[datetime | None] = mapped_column(_Time)
    revoked_at: Mapped[datetime | None] = mapped_column(_Time)
    released_at: Mapped[datetime | None] = mapped_column(_Time)
    damaged_at: Mapped[datetime | None] = mapped_column(_Time)  # see `damage`


class AdapterAliasRow(Base):
    """`targets` is `[{"version": number, "weight": percent}]`, adding up to 100; `parts` the
    version of each part of its callers (see `split`); `shadow` is `{"version", "percent"}`."""

    __tablename__ = "adapter_aliases"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    adapter_id: Mapped[str] = mapped_column(Text, primary_key=True)
    alias: Mapped[str] = mapped_column(Text, primary_key=True)
    targets: Mapped[list[dict[str, int]]] = mapped_column(JSONB)
    parts: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    shadow: Mapped[dict[str, int] | None] = mapped_column(JSONB(none_as_null=True))
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class UploadRow(Base):
    """`part_ids` is known once it is complete: the parts in the file's order, a part that occurs
    twice in it named twice."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    status: Mapped[str] = mapped_column(Text, server_default="pending")
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(Text)
    part_ids: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    expires_at: Mapped[datetime] = mapped_column(_Time)


class UploadPartRow(Base):
    __tablename__ = "upload_parts"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    upload_id: Mapped[str] = mapped_column(Text, index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
