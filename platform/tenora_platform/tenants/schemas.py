"""Plans, tenants and API keys over HTTP."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from tenora_engine.request import LateAction
from tenora_platform.auth import BudgetAction, PlanTerms, Scope, Tier
from tenora_platform.plain_text import WITHOUT_SPACES
from tenora_platform.schemas import Body, Deleted, IdItem, ListPage, Name, PreviousSecret
from tenora_platform.times import BodyTime

Weight = Annotated[float, Field(ge=0.01, le=100)]
MemoryShare = Annotated[float, Field(ge=0.001, le=1)]
TtftMs = Annotated[float, Field(ge=1, le=86_400_000)]  # at most a day
TpotMs = Annotated[float, Field(ge=0.01, le=86_400_000)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
LargeCount = Annotated[int, Field(ge=0, lt=2**53)]  # exact in JSON and in Redis's Lua
KeyModels = Annotated[
    # The base model's id, `name` with all its versions and aliases, or one `name@3`, `name@alias`.
    list[Annotated[str, StringConstraints(max_length=200, pattern=WITHOUT_SPACES)]],
    Field(min_length=1, max_length=100),
]
KeyScopes = Annotated[list[Scope], Field(min_length=1)]
Money = Annotated[Decimal, Field(ge=0, max_digits=38, decimal_places=12)]


class KeyLimits(Body):
    """Null or absent: no limit."""

    requests_per_min: Count | None = None
    tokens_per_min: LargeCount | None = None
    parallel_requests: Count | None = None
    budget: Money | None = None  # per month, in the currency of the price list
    budget_day: Money | None = None
    budget_soft: Annotated[float, Field(ge=0, le=1)] | None = None  # of either budget
    budget_action: BudgetAction = "refuse"  # degrade: beyond budget_soft, requests are flex


class PlanLimits(KeyLimits):
    adapters: Count | None = None
    adapter_bytes: LargeCount | None = None


class PlanBody(Body):
    """A whole plan; PUT replaces the existing one."""

    sla_class: Tier = "default"
    tiers: list[Tier] | None = None  # service tiers its requests may ask for; null: by class
    ttft_ms: TtftMs | None = None
    tpot_ms: TpotMs | None = None
    late: LateAction = "best_effort"  # what becomes of a request that cannot be within ttft_ms
    weight: Weight = 1.0
    memory_share: MemoryShare | None = None
    stored_responses: bool = False  # whether its tenants may have responses stored
    limits: PlanLimits = PlanLimits()

    @model_validator(mode="after")
    def _class_is_allowed(self) -> Self:
        if self.tiers is not None and self.sla_class not in self.tiers:
            raise ValueError("tiers must include the plan's own sla_class")
        return self

    @field_validator("tiers")
    @classmethod
    def _once_each(cls, tiers: list[Tier] | None) -> list[Tier] | None:
        if tiers is not None and len(set(tiers)) != len(tiers):
            raise ValueError("lists a tier twice")
        return tiers


class Plan(PlanBody):
    object: Literal["plan"] = "plan"
    name: str
    tiers: list[Tier]

    @classmethod
    def of(cls, terms: PlanTerms, **more: Any) -> Self:
        return cls.model_validate(
            {
                **more,
                "name": terms.name,
                "sla_class": terms.sla_class,
                "tiers": list(terms.tiers),
                "ttft_ms": terms.ttft_ms,
                "tpot_ms": terms.tpot_ms,
                "late": terms.late,
                "weight": terms.weight,
                "memory_share": terms.memory_share,
                "stored_responses": terms.stored_responses,
                "limits": {name: getattr(terms, name) for name in PlanLimits.model_fields},
            }
        )


class PlanListed(Plan, IdItem):
    """A plan with the number of its tenants, and of the suspended ones among them. `id` is its
    name. `currencies`: those of the price lists in force for all of its tenants, which its budgets
    are in."""

    tenants: int
    tenants_suspended: int
    currencies: list[str]


class PlanList(ListPage[PlanListed]):
    pass


class TenantCreate(Body):
    """A name is a label, and two tenants may have the same one. With `if_name_exists: "refuse"`
    that is 409 `tenant_name_exists`, which names the others."""

    name: Name
    plan: Name = "standard"
    trust_group: Name | None = None
    if_name_exists: Literal["allow", "refuse"] = "allow"


class TenantChange(Body):
    """Absent fields stay as they are."""

    name: Name | None = None
    plan: Name | None = None
    status: Literal["active", "suspended"] | None = None
    trust_group: Name | None = None
    prepaid: bool | None = None  # whether it may spend its credit only


class Tenant(IdItem):
    """`deleted_at`: suspended since, and to be erased `erase_after`, until when it can be
    restored."""

    object: Literal["tenant"] = "tenant"
    name: str
    plan: str
    status: Literal["active", "suspended"]
    trust_group: str | None
    prepaid: bool
    internal: bool  # the platform's own, for its checks
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None = None
    erase_after: datetime | None = None
    erased_at: datetime | None = None


class TenantListed(Tenant):
    """`spend_month` is the spend of the current month (UTC) by currency, as exact decimal strings,
    without `unrated_events`, which wait for a price. `requests_today` counts requests finished
    since midnight UTC."""

    spend_month: dict[str, str]
    unrated_events: int
    requests_today: int


class TenantPage(ListPage[TenantListed]):
    """`total` is the number of matching tenants."""

    total: int


class ApiKeyCreate(Body):
    """Fields that are null or absent, single limits included, are copied from the key that sends
    the request; for the operator that means everything is allowed. `limits` apply in addition to
    the plan's."""

    name: Name = "key"
    scopes: KeyScopes | None = None
    expires_at: BodyTime | None = None
    models: KeyModels | None = None
    limits: KeyLimits | None = None


class ApiKeyChange(Body):
    """Absent fields, single limits included, stay as they are; null removes a limit."""

    name: Name | None = None
    scopes: KeyScopes | None = None
    expires_at: BodyTime | None = None
    models: KeyModels | None = None
    limits: KeyLimits | None = None


class ApiKey(IdItem):
    """`created_by`: `api_key:`, `person:` or `admin_key:` and an id. A key that an API key created
    shares that key's limits and ends with it."""

    object: Literal["api_key"] = "api_key"
    name: str
    prefix: str
    scopes: list[Scope]
    models: list[str] | None
    limits: KeyLimits
    previous: PreviousSecret | None
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class RevokedApiKey(Deleted):
    """How many keys ended, with it those that it created, and how many webhook endpoints were
    disabled that led where one of them had said."""

    object: Literal["api_key"] = "api_key"
    keys: int
    webhook_endpoints: int


class ApiKeyPage(ListPage[ApiKey]):
    pass


class NewApiKey(ApiKey):
    """The only answers that hold the secret."""

    key: str
