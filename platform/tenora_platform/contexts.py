"""What a request knows of the tenant it belongs to: plan, limits, and who asks with which rights.
It knows no request, and no row but a plan's."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, get_args

import msgspec

from tenora_engine.request import LateAction, Tenant
from tenora_platform.people.rights import MemberRole
from tenora_platform.tenants.tables import PlanRow

Scope = Literal["inference", "adapters", "usage", "keys"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Tier = Literal["priority", "default", "flex"]
BudgetAction = Literal["refuse", "degrade"]


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan, or one key within it, allows. None means not limited."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    parallel_requests: int | None = None
    budget: Decimal | None = None  # per month, in the currency of the price list
    budget_day: Decimal | None = None
    budget_soft: float | None = None  # 0 to 1: the part of a budget from which on it tells
    budget_action: BudgetAction = "refuse"  # degrade: what comes then is served as flex


class PlanTerms(Caps, frozen=True, kw_only=True):
    """A tenant's plan as requests need it."""

    name: str
    sla_class: str
    tiers: tuple[str, ...]
    ttft_ms: float | None
    tpot_ms: float | None
    late: LateAction = "best_effort"
    weight: float
    memory_share: float | None
    adapters: int | None
    adapter_bytes: int | None
    stored_responses: bool = False  # its tenants may have them


class ParentKey(msgspec.Struct, frozen=True):
    """A key that the asking one comes from, whose limits hold for both together."""

    key_id: str
    caps: Caps


class TenantContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant a request belongs to, by which key or person, under which plan."""

    tenant_id: str
    name: str
    plan: PlanTerms
    key_id: str  # a person's id, of who is signed in: limits and usage know them by it
    key_prefix: str = ""  # of the secret it came with, of a key that has two
    scopes: tuple[str, ...]
    role: MemberRole | None = None  # a person's at this tenant; None: a key asks
    key_caps: Caps = Caps()  # of this key alone, within the plan's
    parents: tuple[ParentKey, ...] = ()  # of this key, the nearest first
    key_models: tuple[str, ...] | None = None  # None: all of the tenant's
    prepaid: bool = False  # spends its credit only
    account_cap: Decimal | None = None  # a month's, beyond which it has itself refused
    account_currency: str | None = None
    keeps_contents: bool = False  # prompts and answers, as it has chosen itself
    stores_responses: bool = False  # its plan allows it and it has chosen so itself
    keeps_answers: bool = False  # they draft its own later ones, as it has chosen itself
    namespace: str  # of cached KV: HMAC of the tenant, or of its trust group

    @property
    def actor(self) -> str:
        """Names who asks in the audit log, without giving a key away."""
        return f"api_key:{self.key_id}" if self.role is None else f"person:{self.key_id}"

    @property
    def lineage(self) -> tuple[str, ...]:
        """The asking key, or person, and the keys it comes from: what it uses counts for all."""
        return (self.key_id, *(parent.key_id for parent in self.parents))

    def to_engine(self, tier: str | None = None) -> Tenant:
        """The tenant as the engine knows it. The plan promises its times for its own class: who
        asks for another one waits as that class waits."""
        own = tier is None or tier == self.plan.sla_class
        return Tenant(
            key=self.tenant_id,
            namespace=self.namespace,
            weight=self.plan.weight,
            tier=tier or self.plan.sla_class,
            ttft_ms=self.plan.ttft_ms if own else None,
            tpot_ms=self.plan.tpot_ms if own else None,
            late=self.plan.late,
            min_memory_share=self.plan.memory_share or 0.0,
            max_memory_share=self.plan.memory_share or 1.0,
            keeps_answers=self.keeps_answers,
        )


def plan_terms(plan: PlanRow) -> PlanTerms:
    return PlanTerms(
        name=plan.name,
        sla_class=plan.sla_class,
        tiers=tuple(plan.tiers),
        ttft_ms=plan.ttft_ms,
        tpot_ms=plan.tpot_ms,
        late=plan.late,
        weight=plan.weight,
        memory_share=plan.memory_share,
        adapters=plan.adapters,
        adapter_bytes=plan.adapter_bytes,
        stored_responses=plan.stored_responses,
        **plan.limits,
    )
