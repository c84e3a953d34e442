"""What a request may cost, by the prices in force: its prompts at the dearer of what cached and
uncached tokens cost, and the output that `max_tokens` and the tenant's own history lead to expect,
never the whole context. The history itself is Redis' (`scripts.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from tenora_platform.auth import TenantContext
from tenora_platform.billing.price_lists import Prices, Scope
from tenora_platform.billing.rating import (
    Billable,
    UnratableError,
    Volume,
    exact_amount,
    nanos_charged,
    priced,
)
from tenora_platform.budgets.accounts import NO_CURRENCY
from tenora_platform.budgets.hold import Run, event_ids
from tenora_platform.budgets.store import Wanted, Work
from tenora_platform.errors import UnavailableError

UNKNOWN_TOKENS = 256
"""Output tokens that a sequence is expected to have until its model has a history."""


def currency_of(
    prices: Prices, tenant: TenantContext, runs: Sequence[Run], now: datetime
) -> str | None:
    """In which currency a request is priced; None where no list holds for it."""
    context = runs[0].request.context
    adapter = context.get("adapter_id") or None
    scope = Scope(adapter, tenant.tenant_id, tenant.plan.name, context["model"])
    price = prices.choose(scope, now)
    return None if price is None else price.currency


def estimate(
    prices: Prices,
    used: Mapping[Volume, int],
    tenant: TenantContext,
    runs: Sequence[Run],
    model: str,
    classes: Iterable[str],
    now: datetime,
) -> Work:
    """An upper bound in what each token costs: at the dearest of the classes that may serve it, and
    where prices have tiers, at the dearest that is left beyond what was `used`. Raises
    UnavailableError without a price: what cannot be priced cannot be kept within a budget."""
    context = runs[0].request.context
    base = Billable(
        event_id="",
        tenant_id=tenant.tenant_id,
        model=context["model"],
        plan=tenant.plan.name,
        event_time=now,
        adapter_id=context.get("adapter_id") or None,
        class_="",
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        cold_loads=0,
    )
    uncached, output = replace(base, prompt_tokens=1), replace(base, output_tokens=1)
    cached = replace(uncached, cached_tokens=1)
    loading = replace(base, cold_loads=int(runs[0].request.adapter is not None))
    try:
        prompt, cached_prompt, token, load = (
            max(_price(prices, used, replace(unit, class_=each)) for each in classes)
            for unit in (uncached, cached, output, loading)
        )
    except UnratableError as error:
        raise UnavailableError(
            f"This request is limited by a budget, but its cost cannot be calculated: {error}. "
            "The operator of this server can add a price list.",
            code="price_missing",
        ) from error
    sequences = []
    for run in runs:
        tokens = len(run.request.prompt_token_ids)
        # The prompt is metered on the first of a run's sequences, and so is loading its adapter.
        first = exact_amount(tokens, max(prompt, cached_prompt)) + exact_amount(1, load)
        for index, event_id in enumerate(event_ids(run.request)):
            sequences.append(
                Wanted(
                    event_id=event_id,
                    prompt_nanos=nanos_charged(first) if index == 0 else 0,
                    tokens_max=run.request.sampling.max_tokens,
                )
            )
    return Work(
        model=model,
        sequences=sequences,
        token_nanos=float(exact_amount(10**9, token)),
        unknown_tokens=UNKNOWN_TOKENS,
        currency=currency_of(prices, tenant, runs, now) or NO_CURRENCY,
    )


def _price(prices: Prices, used: Mapping[Volume, int], unit: Billable) -> Decimal:
    """Of a million such units; 0 of nothing."""
    lines = priced(prices, unit).rating_at_most(used).lines
    return lines[0].parts[0].per_million if lines else Decimal(0)
