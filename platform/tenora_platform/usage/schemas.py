"""Usage and costs as the HTTP API shows them: pages of time buckets, each with grouped results."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from tenora_platform.billing.price_lists import Meter
from tenora_platform.reconciliation.schemas import CanaryRound, Run

Bucket = Literal["1h", "1d", "1mo"]


class GroupKeys(BaseModel):
    """What a result is grouped by; null where the query did not group by it (or for the base
    model, which has no adapter)."""

    tenant_id: str | None = None
    adapter: str | None = None
    adapter_version: int | None = None
    api_key_id: str | None = None
    model: str | None = None
    tier: str | None = None
    kind: str | None = None  # chatcmpl, cmpl, ...; shadow; residency, stored


class CurrencyCost(BaseModel):
    """`amount` is an exact decimal string."""

    currency: str
    amount: str


class UsageCosts(BaseModel):
    """What it cost, by currency, as GET /v1/costs has it; sequences that wait for a price are in no
    amount."""

    amounts: list[CurrencyCost]
    unrated_events: int


class UsageResult(GroupKeys):
    """Tokens of finished sequences. `prompt_tokens` = cached + uncached. A request has a sequence
    for each of its prompts, `n` times. `costs`: where `include=costs` was asked for; then there are
    also results of what was only held, such as adapters in memory, without any tokens. `others`:
    how many groups are together in this one, where `top` was asked for."""

    requests: int
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    uncached_tokens: int
    output_tokens: int
    costs: UsageCosts | None = None
    others: int | None = None


class UsageBucket(BaseModel):
    object: Literal["bucket"] = "bucket"
    start: datetime
    end: datetime
    results: list[UsageResult]


class UsagePage(BaseModel):
    """`groups`: each group's over all buckets of this page, the greatest first by `top_by`, the
    others last; `total`: all of them."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    groups: list[UsageResult]
    total: UsageResult
    has_more: bool
    next_page: str | None


class MeterCost(BaseModel):
    """One meter's share: of tokens, loads, kB*s of residency or kB*h of storage. `amount` is an
    exact decimal string."""

    meter: Meter
    quantity: int
    amount: str


class CostResult(GroupKeys):
    """`unrated_events` > 0 means: no price was found for them yet, so `amount` lacks them."""

    amount: str
    currency: str
    meters: list[MeterCost]
    unrated_events: int


class CostBucket(BaseModel):
    object: Literal["bucket"] = "bucket"
    start: datetime
    end: datetime
    results: list[CostResult]


class UnratedEvent(BaseModel):
    """An event that is stored and waits for a price. `x_request_id` is the HTTP answer's header."""

    event_id: str
    tenant_id: str
    request_id: str
    x_request_id: str | None
    reason: str
    since: datetime


class DeadLetter(BaseModel):
    """A record of the engine's that could not become an event."""

    event_id: str
    reason: str
    received_at: datetime
    record: dict[str, Any]


class BudgetCorrection(BaseModel):
    """A budget's counter that differed from the books, and was put right; decimal strings."""

    tenant_id: str
    account: str
    counted: str
    books: str
    found_at: datetime


class Reconciliation(BaseModel):
    """What is kept and not billed, in all and the newest of it. `settled`: there is none. Beside
    it the budgets that had been counted wrong, of a day; whether the layers of the books agreed
    when they were last compared as a whole, and what was found; and the canary's last round."""

    object: Literal["reconciliation"] = "reconciliation"
    settled: bool
    unrated_events: int
    dead_letters: int
    newest_unrated_events: list[UnratedEvent]
    newest_dead_letters: list[DeadLetter]
    budget_corrections: list[BudgetCorrection] = []
    agrees: bool | None = None
    last_run: Run | None = None
    canary: CanaryRound | None = None


class CostPage(BaseModel):
    object: Literal["page"] = "page"
    data: list[CostBucket]
    has_more: bool
    next_page: str | None
