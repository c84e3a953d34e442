"""HTTP routes of limits."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.auth import CurrentTenant
from tenora_platform.limits.schemas import LimitsView, ParallelLimit, RateLimit
from tenora_platform.limits.service import LimitUse
from tenora_platform.state import State

router = APIRouter(prefix="/v1/limits", tags=["limits"])


@router.get("")
async def show(tenant: CurrentTenant, state: State) -> LimitsView:
    """The plan, its limits, and what is used now."""
    now = await state.limits.now(tenant)
    plan = tenant.plan
    return LimitsView(
        plan=plan.name,
        sla_class=plan.sla_class,
        tiers=list(plan.tiers),
        ttft_ms=plan.ttft_ms,
        tpot_ms=plan.tpot_ms,
        requests_per_min=_rate(now.requests),
        tokens_per_min=_rate(now.tokens),
        parallel_requests=ParallelLimit(limit=now.parallel_max, used=now.parallel),
        adapters=plan.adapters,
        adapter_bytes=plan.adapter_bytes,
        budget=plan.budget,
    )


def _rate(use: LimitUse) -> RateLimit:
    used = 0 if use.limit is None or use.remaining is None else use.limit - use.remaining
    return RateLimit(limit=use.limit, used=used, remaining=use.remaining, reset_ms=use.reset_ms)
