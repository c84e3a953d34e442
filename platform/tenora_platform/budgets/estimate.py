"""What a request may cost, by the prices in force: its prompts as if nothing of them were cached,
and the output that `max_tokens` and the tenant's own history lead to expect, never the whole
context. The history itself is Redis' (`scripts.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from tenora_platform.auth import TenantContext
from tenora_platform.billing.rating import (
    Billable,
    Meter,
    MissingPriceError,
    PriceList,
    choose,
    exact_amount,
)
from tenora_platform.budgets.accounts import nanos_charged
from tenora_platform.budgets.hold import Run, event_ids
from tenora_platform.budgets.store import Wanted, Work
from tenora_platform.errors import UnavailableError

UNKNOWN_TOKENS = 256
"""Output tokens that a sequence is expected to have until its model has a history."""


def estimate(
    prices: Sequence[PriceList],
    tenant: TenantContext,
    runs: Sequence[Run],
    model: str,
    now: datetime,
) -> Work:
    """Raises UnavailableError without a price: what cannot be priced cannot be kept within a
    budget."""
    base = runs[0].request.context["model"]
    event = Billable("", tenant.tenant_id, base, tenant.plan.name, now, 0, 0, 0)
    try:
        chosen = choose(prices, event)
        prompt = _price(chosen, "uncached_prefill")
        output = _price(chosen, "output")
    except MissingPriceError as error:
        raise UnavailableError(
            f"This request is under a budget, and its cost is not known: {error}. The operator of "
            "this server can add a price list.",
            code="price_missing",
        ) from error
    sequences = []
    for run in runs:
        tokens = len(run.request.prompt_token_ids)
        for index, event_id in enumerate(event_ids(run.request)):
            sequences.append(
                Wanted(
                    event_id=event_id,
                    # The prompt is metered on the first of a run's sequences.
                    prompt_nanos=nanos_charged(exact_amount(tokens, prompt)) if index == 0 else 0,
                    tokens_max=run.request.sampling.max_tokens,
                )
            )
    return Work(
        model=model,
        sequences=sequences,
        token_nanos=float(exact_amount(10**9, output)),
        unknown_tokens=UNKNOWN_TOKENS,
    )


def _price(prices: PriceList, meter: Meter) -> Decimal:
    per_million = prices.per_million.get(meter)
    if per_million is None:
        raise MissingPriceError(f"price list {prices.id} has no price for {meter}")
    return per_million
