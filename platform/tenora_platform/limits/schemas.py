"""Limits over HTTP."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import BaseModel

from tenora_platform.budgets.schemas import BudgetView, CreditView


class RateLimit(BaseModel):
    """`limit` is null if there is no limit. `remaining` and `reset_ms` are as of now."""

    limit: int | None
    used: int
    remaining: int | None
    reset_ms: int


class ParallelLimit(BaseModel):
    """Parallel sequences: each prompt of a request counts `n` times."""

    limit: int | None
    used: int


class KeyLimitsView(BaseModel):
    """The limits of the key that sent this request. They apply in addition to the plan's."""

    requests_per_min: RateLimit
    tokens_per_min: RateLimit
    parallel_requests: ParallelLimit


class LimitsView(BaseModel):
    """A tenant's plan, its limits, and current usage. `key` is null if the key has no limits of its
    own. `local` is true while Redis is not reachable and each process counts on its own.
    `currency` is the first in which the tenant is charged; null while no price list is in force.
    `credit` is what a tenant that prepays has in that currency; `credits` has every currency, that
    one first.
    `adapter_bytes_used` includes open uploads; it and `adapters_used` are null while the database
    is not reachable."""

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
    currency: str | None
    budget: Decimal | None
    budgets: list[BudgetView]  # of the plan and of the key that asks
    credit: CreditView | None  # of a tenant that prepays
    credits: list[CreditView]
