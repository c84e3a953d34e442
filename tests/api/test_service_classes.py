"""A plan's promises on their way to the engine."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from tenora_engine.scheduling.classes import CLASS_WEIGHTS
from tenora_platform.auth import PlanTerms, TenantContext, Tier
from tenora_platform.inference.session import choose_tier

PLAN = PlanTerms(
    name="p",
    sla_class="priority",
    tiers=("priority", "flex"),
    ttft_ms=500.0,
    tpot_ms=50.0,
    late="refuse",
    weight=2.0,
    memory_share=None,
    requests_per_min=None,
    tokens_per_min=None,
    parallel_requests=None,
    adapters=None,
    adapter_bytes=None,
    budget=None,
)
TENANT = TenantContext(tenant_id="t", name="t", plan=PLAN, key_id="k", scopes=(), namespace="n")


def test_the_tiers_are_the_engines_classes() -> None:
    assert set(get_args(Tier)) == set(CLASS_WEIGHTS)


@pytest.mark.parametrize(
    ("wanted", "tier", "ttft_ms"),
    [(None, "priority", 500.0), ("auto", "priority", 500.0), ("flex", "flex", None)],
)
def test_the_plans_times_are_promised_in_its_own_class(
    wanted: str | None, tier: str, ttft_ms: float | None
) -> None:
    tenant = TENANT.to_engine(choose_tier(TENANT, wanted))
    assert (tenant.tier, tenant.ttft_ms, tenant.late) == (tier, ttft_ms, "refuse")
    assert (tenant.tpot_ms is None) == (ttft_ms is None)
    assert tenant.weight == 2.0


def test_terms_remembered_before_plans_said_what_is_late_can_still_be_read() -> None:
    fields = msgspec.to_builtins(PLAN)
    del fields["late"]
    assert msgspec.convert(fields, PlanTerms).late == "best_effort"
