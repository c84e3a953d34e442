"""Which budgets a request is under, as accounts with caps, and what one finished sequence charges
to them. Money is an integer here, nanos (10^-9 of the currency's unit): what Redis can add and
compare. Knows plans and keys as numbers; no Redis, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Literal

from tenora_engine.events import UsageRecord
from tenora_platform.auth import Caps, TenantContext
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.rating import Rating, Volume, priced
from tenora_platform.contexts import ParentKey
from tenora_platform.usage.records import billable, usage_event

BudgetName = Literal["key_day", "key_month", "account_month", "plan_day", "plan_month", "credit"]
CREDIT: Literal["credit"] = "credit"
"""Of prepaid credit; it has no period."""

NO_CURRENCY = "XXX"
"""ISO 4217's code for none: where no price holds, nothing is spent."""

_WIDE = Context(prec=80)
_NANO = Decimal(10) ** 9


@dataclass(frozen=True, slots=True)
class Budget:
    """One cap, of amounts of one currency: no other amount counts for it. `account` is the name of
    its counter in Redis; `cap` None: Redis has it (credit)."""

    name: BudgetName
    account: str
    cap: int | None  # nanos
    soft: float | None  # 0 to 1 of the cap: from there on it tells
    degrade: bool  # beyond the soft cap, requests are flex
    key_id: str | None  # None: of the whole tenant
    start: datetime | None  # of its period; None for credit, which has none
    resets_at: datetime | None
    currency: str | None = None  # what its amounts are said to be in; None: there is no price yet


@dataclass(frozen=True, slots=True)
class Charge:
    """What one finished sequence costs, once."""

    event_id: str
    tenant_id: str
    keys: tuple[str, ...]  # the key, or person, and the keys it comes from
    at: datetime
    nanos: int
    currency: str
    output_tokens: int = 0


def has_budget(tenant: TenantContext) -> bool:
    """Whether requests of this key are under any budget at all."""
    every = (tenant.plan, tenant.key_caps, *(parent.caps for parent in tenant.parents))
    return (
        any(caps.budget is not None or caps.budget_day is not None for caps in every)
        or tenant.account_cap is not None
        or tenant.prepaid
    )


def budgets_of(tenant: TenantContext, now: datetime, currency: str | None = None) -> list[Budget]:
    """Those of its key first, then of the keys that it comes from: the narrowest one that refuses
    is the one that is named. `currency` is that of a price, None where there is none. The caps of
    plans and keys hold in each currency by itself, credit is what was granted in it, and an
    account's budget in another holds nothing up."""
    day, month = day_start(now), month_start(now)
    plan = tenant.plan
    every: list[tuple[BudgetName, Caps, str | None, Decimal | None, datetime]] = []
    for parent in (ParentKey(tenant.key_id, tenant.key_caps), *tenant.parents):
        key, key_id = parent.caps, parent.key_id
        every.append(("key_day", key, key_id, key.budget_day, day))
        every.append(("key_month", key, key_id, key.budget, month))
    every += [
        ("account_month", Caps(), None, _account_cap(tenant, currency), month),
        ("plan_day", plan, None, plan.budget_day, day),
        ("plan_month", plan, None, plan.budget, month),
    ]
    found = [
        Budget(
            name=name,
            account=account_of(
                name, start, of, _currency_of(name, tenant, currency) or NO_CURRENCY
            ),
            cap=nanos_within(cap),
            soft=caps.budget_soft,
            degrade=caps.budget_action == "degrade",
            key_id=of,
            start=start,
            resets_at=_end(name, start),
            currency=_currency_of(name, tenant, currency),
        )
        for name, caps, of, cap, start in every
        if cap is not None
    ]
    if tenant.prepaid:
        found.append(
            Budget(
                name=CREDIT,
                account=f"{CREDIT}:{currency or NO_CURRENCY}",
                cap=None,
                soft=tenant.plan.budget_soft,
                degrade=tenant.plan.budget_action == "degrade",
                key_id=None,
                start=None,
                resets_at=None,
                currency=currency,
            )
        )
    return found


def _account_cap(tenant: TenantContext, currency: str | None) -> Decimal | None:
    is_in_it = currency is None or currency == tenant.account_currency
    return tenant.account_cap if is_in_it else None


def _currency_of(name: BudgetName, tenant: TenantContext, currency: str | None) -> str | None:
    return tenant.account_currency if name == "account_month" else currency


def _end(name: BudgetName, start: datetime) -> datetime:
    return start + timedelta(days=1) if name.endswith("day") else next_month(start)


def account_of(name: BudgetName, start: datetime, key_id: str | None, currency: str) -> str:
    """`d:2026-11-22:USD`, `m:2026-11:USD`, and of one key `k:<key id>:d:2026-11-22:USD`: the
    scripts know."""
    account = f"{_period(name, start)}:{currency}"
    return account if key_id is None else f"k:{key_id}:{account}"


def _period(name: BudgetName, start: datetime) -> str:
    return f"d:{start:%Y-%m-%d}" if name.endswith("day") else f"m:{start:%Y-%m}"


def day_start(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def month_start(time: datetime) -> datetime:
    return day_start(time).replace(day=1)


def next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


def nanos_within(cap: Decimal) -> int:
    """A cap, rounded down."""
    return int(_WIDE.multiply(cap, _NANO).to_integral_value(ROUND_FLOOR, _WIDE))


def money_of(nanos: int) -> Decimal:
    """Back to the currency's unit, exactly."""
    return _WIDE.scaleb(Decimal(nanos), -9)


def charge_of(
    record: UsageRecord, prices: Prices, used: Mapping[Volume, int], keys: tuple[str, ...]
) -> Charge:
    """What the usage sink will make of this record, at most: where its price has tiers, the dearest
    of those that are left beyond `used`; the books' word replaces it. It counts for `keys`. Raises
    BadRecordError for one that cannot become an event, UnratableError for one that cannot be
    priced."""
    event = usage_event(record)
    rating = priced(prices, billable(event)).rating_at_most(used)
    return charge_for(rating, keys)


def charge_for(rating: Rating, keys: tuple[str, ...]) -> Charge:
    event = rating.event
    return Charge(
        event_id=event.event_id,
        tenant_id=event.tenant_id,
        keys=keys,
        at=event.event_time,
        nanos=rating.nanos,
        currency=NO_CURRENCY if rating.price is None else rating.price.currency,
        output_tokens=event.output_tokens,
    )
