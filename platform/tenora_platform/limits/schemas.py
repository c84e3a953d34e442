"""Limits over HTTP."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel

from tenora_platform.budgets.schemas import BudgetView, CreditView


class RateLimit(BaseModel):
    """`limit` null: not limited. `remaining` and `reset_ms` are of this moment."""

    limit: int | None
    used: int
    remaining: int | None
    reset_ms: int


class ParallelLimit(BaseModel):
    """Sequences: each of a request's prompts counts `n` times."""

    limit: int | None
    used: int


class KeyLimitsView(BaseModel):
    """The limits of the key that asks, which hold within its plan's."""

    requests_per_min: RateLimit
    tokens_per_min: RateLimit
    parallel_requests: ParallelLimit


class LimitsView(BaseModel):
    """A tenant's plan, what it limits, and what is used now. `key` null: the key has no limits of
    its own. `local`: Redis is away, and the server counts by each of its processes alone.
    `adapter_bytes_used` counts open uploads; null, as `adapters_used`: the database is away."""

    object: Literal["limits"] = "limits"
    plan: str
    sla_class: str
    tiers: list[str]
    ttft_ms: float | None
    tpot_ms: float | None
    requests_per_min: RateLimit
    tokens_per_min: RateLimit
    parallel_requests: ParallelLimit
    key: KeyLimitsView | None
    local: bool
    adapters: int | None
    adapters_used: int | None
    adapter_bytes: int | None
    adapter_bytes_used: int | None
    budget: Decimal | None
    budgets: list[BudgetView]  # of the plan and of the key that asks
    credit: CreditView | None  # of a tenant that prepays
