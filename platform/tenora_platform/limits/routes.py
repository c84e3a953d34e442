"""HTTP routes of limits."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.auth import CurrentTenant, TenantContext
from tenora_platform.budgets.schemas import budget_views
from tenora_platform.edge import EdgeRoute
from tenora_platform.limits.schemas import KeyLimitsView, LimitsView, ParallelLimit, RateLimit
from tenora_platform.limits.uses import LimitUse, ScopeUse
from tenora_platform.registry import repository
from tenora_platform.state import AppState, State

router = APIRouter(prefix="/v1/limits", tags=["limits"], route_class=EdgeRoute)


@router.get("")
async def show(tenant: CurrentTenant, state: State) -> LimitsView:
    """The plan, its rate limits, those of the key, and current usage."""
    now = await state.limits.now(tenant)
    charged = await state.budgets.currencies(tenant)
    levels = await state.budgets.every_level(tenant, charged)
    budgets, credits = budget_views(levels, charged)
    plan = tenant.plan
    adapters_used, bytes_used = await _stored(tenant, state)
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
        adapters_used=adapters_used,
        adapter_bytes=plan.adapter_bytes,
        adapter_bytes_used=bytes_used,
        currency=charged[0],
        budget=plan.budget,
        budgets=budgets,
        credit=next(iter(credits), None),
        credits=credits,
    )


async def _stored(tenant: TenantContext, state: AppState) -> tuple[int | None, int | None]:
    """Adapters and their bytes. What else is shown is in Redis, and is shown without these too."""
    try:
        async with state.db.tenant_session(tenant.tenant_id) as session:
            count = await repository.adapter_count(session, tenant.tenant_id)
            return count, await repository.stored_bytes(session, tenant.tenant_id)
    except SQLAlchemyError:
        return None, None


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
