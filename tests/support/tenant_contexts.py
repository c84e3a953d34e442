"""Tenants as requests know them, without a database: a plain plan, with what a test is about."""

from __future__ import annotations

from typing import Any

from tenora_platform.auth import PlanTerms, TenantContext


def plan_terms(**changes: Any) -> PlanTerms:
    """One class and no limits."""
    values: dict[str, Any] = {
        "name": "p",
        "sla_class": "default",
        "tiers": ("default",),
        "ttft_ms": None,
        "tpot_ms": None,
        "weight": 1.0,
        "memory_share": None,
        "adapters": None,
        "adapter_bytes": None,
    }
    return PlanTerms(**(values | changes))


def tenant_context(plan: PlanTerms | None = None, **changes: Any) -> TenantContext:
    """A key `k` of a tenant `t`, without scopes."""
    values: dict[str, Any] = {"tenant_id": "t", "name": "t", "key_id": "k"}
    values |= {"scopes": (), "namespace": "n"}
    return TenantContext(plan=plan or plan_terms(), **(values | changes))
