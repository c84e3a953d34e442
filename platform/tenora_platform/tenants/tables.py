"""Rows of plans, tenants and API keys. Plans and tenants belong to the operator; keys belong to
their tenant."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    Numeric,
    Text,
    false,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column

from tenora_engine.request import LateAction
from tenora_platform.db import Base
from tenora_platform.kept_keys import KeptKey

_Time = DateTime(timezone=True)


class _Capped:
    """The columns of `auth.Caps`: NULL limits are not limited."""

    requests_per_min: Mapped[int | None]
    tokens_per_min: Mapped[int | None] = mapped_column(BigInteger)
    parallel_requests: Mapped[int | None]
    budget: Mapped[Decimal | None] = mapped_column(Numeric(38, 12))  # per month
    budget_day: Mapped[Decimal | None] = mapped_column(Numeric(38, 12))
    budget_soft: Mapped[float | None]
    budget_action: Mapped[str] = mapped_column(Text, server_default="refuse")

    @property
    def limits(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _Capped.__annotations__}


class PlanRow(_Capped, Base):
    """What a tenant of this plan is promised and allowed. NULL limits are not limited."""

    __tablename__ = "plans"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    sla_class: Mapped[str] = mapped_column(Text)
    tiers: Mapped[list[str]] = mapped_column(ARRAY(Text))
    ttft_ms: Mapped[float | None]
    tpot_ms: Mapped[float | None]
    late: Mapped[LateAction] = mapped_column(Text)  # of what cannot be within ttft_ms
    weight: Mapped[float]
    memory_share: Mapped[float | None]
    adapters: Mapped[int | None]
    adapter_bytes: Mapped[int | None] = mapped_column(BigInteger)
    stored_responses: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class TenantRow(Base):
    """A customer. Its name is a label; its id is what everything refers to."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    # What the rows of a million events refer to; shown to nobody.
    no: Mapped[int] = mapped_column(Integer, Identity(always=True), unique=True)
    name: Mapped[str] = mapped_column(Text)
    plan: Mapped[str] = mapped_column(Text, ForeignKey("plans.name"))
    status: Mapped[str] = mapped_column(Text, server_default="active")
    trust_group: Mapped[str | None] = mapped_column(Text)  # tenants that may share cached KV
    namespace: Mapped[str | None] = mapped_column(Text)  # of its cached KV; NULL: to be noted
    prepaid: Mapped[bool] = mapped_column(server_default=false())  # spends its credit only
    internal: Mapped[bool] = mapped_column(server_default=false())  # the platform's own
    deleted_at: Mapped[datetime | None] = mapped_column(_Time)  # suspended since; see `erasure`
    erase_after: Mapped[datetime | None] = mapped_column(_Time)  # until then it can be restored
    erased_at: Mapped[datetime | None] = mapped_column(_Time)
    status_before: Mapped[str | None] = mapped_column(Text)  # of the deletion
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())


class TenantPlanRow(Base):
    """The plan that a tenant has from `since` until its next row's. A trigger on `tenants` writes
    it, whoever changes the plan."""

    __tablename__ = "tenant_plans"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"), primary_key=True)
    since: Mapped[datetime] = mapped_column(_Time, primary_key=True)
    plan: Mapped[str] = mapped_column(Text, ForeignKey("plans.name"))


class ApiKeyRow(_Capped, KeptKey, Base):
    """One API key of a tenant's."""

    __tablename__ = "api_keys"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id"))
    # The keys that it comes from, the nearest first: they share their limits with it, and end it.
    lineage: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    models: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # NULL: all
