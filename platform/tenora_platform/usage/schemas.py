"""Usage and costs as the HTTP API shows them: pages of time buckets, each with grouped results."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from tenora_platform.billing.price_lists import Meter
from tenora_platform.reconciliation.schemas import CanaryRound, Run

Bucket = Literal["1h", "1d", "1mo"]


class GroupKeys(BaseModel):
    """What a result is grouped by; null if the query did not group by it (or for the base model,
    which has no adapter)."""

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
    """The cost by currency, as in GET /v1/costs; sequences that wait for a price are in no
    amount."""

    amounts: list[CurrencyCost]
    unrated_events: int


class UsageResult(GroupKeys):
    """Tokens of finished sequences. `prompt_tokens` = cached + uncached. A request has `n`
    sequences for each of its prompts. `costs` is present with `include=costs`; then there are also
    results without tokens, for adapters in memory and storage. `others` is the number of groups
    combined in this result, if `top` was given."""

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
    """`groups`: the sums of each group over all buckets of this page, the largest by `top_by`
    first, and all others last; `total`: the sum over everything."""

    object: Literal["page"] = "page"
    data: list[UsageBucket]
    groups: list[UsageResult]
    total: UsageResult
    has_more: bool
    next_page: str | None


class MeterCost(BaseModel):
    """One meter's share: tokens, adapter loads, kB-seconds of residency or kB-hours of storage.
    `amount` is an exact decimal string."""

    meter: Meter
    quantity: int
    amount: str


class CostResult(GroupKeys):
    """`unrated_events` counts events without a price; `amount` does not include them."""

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
    """A stored event that waits for a price. `x_request_id` is the header of the HTTP answer."""

    event_id: str
    tenant_id: str
    request_id: str
    x_request_id: str | None
    reason: str
    since: datetime


class DeadLetter(BaseModel):
    """A record from the engine that could not be stored as an event."""

    event_id: str
    reason: str
    received_at: datetime
    record: dict[str, Any]


class BudgetCorrection(BaseModel):
    """A budget counter that differed from the books and was corrected; decimal strings."""

    tenant_id: str
    account: str
    counted: str
    books: str
    found_at: datetime


class Reconciliation(BaseModel):
    """Usage that is stored and not billed: totals, and the newest of it. `settled` is true if there
    is none. Also the budget counters corrected in the last day; whether the layers of the books
    agreed at the last full reconciliation, and its findings; and the last round of synthetic
    checks."""

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
