"""Rows of webhooks: who wants to be told of events, and what became of telling them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, DateTime, ForeignKey, SmallInteger, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import Base

_Time = DateTime(timezone=True)


class WebhookEndpointRow(Base):
    """An address that events are sent to; without a tenant the operator's, which gets those of all.
    Secrets are encrypted under the server's."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(Text, ForeignKey("tenants.id"))
    url: Mapped[str] = mapped_column(Text)
    url_by: Mapped[str | None] = mapped_column(Text)  # who changed it last
    created_by: Mapped[str | None] = mapped_column(Text)  # as the audit log names who asks
    description: Mapped[str] = mapped_column(Text, server_default="")
    types: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # NULL: of any
    secret: Mapped[str] = mapped_column(Text)
    previous_secret: Mapped[str | None] = mapped_column(Text)  # signs too, until then
    previous_expires_at: Mapped[datetime | None] = mapped_column(_Time)
    disabled_at: Mapped[datetime | None] = mapped_column(_Time)
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    deleted_at: Mapped[datetime | None] = mapped_column(_Time)


class WebhookDeliveryRow(Base):
    """One event for one endpoint. One that is being sent is claimed until it counts as lost; its
    `next_at` is then the same time."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(Text, ForeignKey("webhook_endpoints.id"))
    tenant_id: Mapped[str | None] = mapped_column(Text, ForeignKey("tenants.id"))
    event_id: Mapped[str] = mapped_column(Text, ForeignKey("events.id"))
    state: Mapped[str] = mapped_column(Text, server_default="waiting")  # delivered, dead
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    next_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    claimed_until: Mapped[datetime | None] = mapped_column(_Time)
    last_at: Mapped[datetime | None] = mapped_column(_Time)
    last_status: Mapped[int | None] = mapped_column(SmallInteger)
    last_error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class WebhookQueueRow(Base):
    """An event that no deliveries have been made of yet."""

    __tablename__ = "webhook_queue"

    event_id: Mapped[str] = mapped_column(Text, ForeignKey("events.id"), primary_key=True)
