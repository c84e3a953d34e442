"""HTTP routes of limits."""

from __future__ import annotations

from fastapi import APIRouter

from tenora_platform.auth import CurrentTenant
from tenora_platform.budgets.schemas import budget_views
from tenora_platform.edge import EdgeRoute
from tenora_platform.limits.schemas import KeyLimitsView, LimitsView, ParallelLimit, RateLimit
from tenora_platform.limits.uses import LimitUse, ScopeUse
from tenora_platform.state import State

router = APIRouter(prefix="/v1/limits", tags=["limits"], route_class=EdgeRoute)


@router.get("")
async def show(tenant: CurrentTenant, state: State) -> LimitsView:
    """The plan, its limits and those of the key, and what is used now."""
    now = await state.limits.now(tenant)
    budgets, credit = budget_views(await state.budgets.levels(tenant))
    plan = tenant.plan
    return LimitsView(
        plan=plan.name,
        sla_class=plan.sla_class,
        tiers=list(plan.tiers),
        ttft_ms=plan.ttft_ms,
        tpot_ms=plan.tpot_ms,
        requests_per_min=_rate(now.plan.requests),
        tokens_per_min=_rate(now.plan.tokens),
        parallel_requests=_parallel(now.plan),
        key=None if now.key is None else _of_key(now.key),
        local=now.local,
        adapters=plan.adapters,
        adapter_bytes=plan.adapter_bytes,
        budget=plan.budget,
        budgets=budgets,
        credit=credit,
    )


def _of_key(use: ScopeUse) -> KeyLimitsView:
    return KeyLimitsView(
        requests_per_min=_rate(use.requests),
        tokens_per_min=_rate(use.tokens),
        parallel_requests=_parallel(use),
    )


def _rate(use: LimitUse) -> RateLimit:
    return RateLimit(limit=use.limit, used=use.used, remaining=use.remaining, reset_ms=use.reset_ms)


def _parallel(use: ScopeUse) -> ParallelLimit:
    return ParallelLimit(limit=use.parallel_max, used=use.parallel)
