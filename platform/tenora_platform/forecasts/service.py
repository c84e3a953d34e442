"""Forecasts out of the sums of usage. The arithmetic is `projection`'s."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.billing.currencies import charged_in
from tenora_platform.billing.rating import exact_sum
from tenora_platform.contexts import PlanTerms
from tenora_platform.forecasts.projection import (
    DAYS,
    METHOD,
    days_left,
    estimate,
    full_days,
    month_of,
    projected,
    reached_on,
)
from tenora_platform.forecasts.schemas import CurrencyForecast, DaySpent, Forecast, ForecastBudget
from tenora_platform.usage import reading
from tenora_platform.usage.reading import Window, floor
from tenora_platform.usage.service import money
from tenora_platform.usage.tables import UsageDayRow

Days = Mapping[date, Decimal]
_HOUR = timedelta(hours=1)


async def forecast(
    session: AsyncSession, tenant_id: str | None, plan: PlanTerms | None, now: datetime
) -> Forecast:
    """Of one tenant, or of all but the platform's own together (`tenant_id` None). `plan`: its
    own."""
    start, end = month_of(now)
    last_month, _ = month_of(start - _HOUR)
    back = min(last_month, floor(now, "day") - timedelta(days=DAYS))
    by_currency: defaultdict[str, dict[date, Decimal]] = defaultdict(dict)
    unrated = 0
    window = Window(back, floor(now, "hour") + _HOUR, "day", (), tenant_id, internal=False)
    for each in await reading.sums(session, window):
        if each.meter == "unrated":
            unrated += each.quantity
        if each.currency is not None and each.amount:
            days, day = by_currency[each.currency], each.bucket.date()
            days[day] = exact_sum((days.get(day, Decimal(0)), each.amount))
    first = await _first_use(session, tenant_id)
    last_days = full_days(now, first)
    found = [_of_currency(name, days, last_days, now) for name, days in sorted(by_currency.items())]
    return Forecast(
        period=f"{start:%Y-%m}",
        start=start,
        end=end,
        as_of=now,
        days_left=round(float(days_left(now)), 3),
        method=METHOD,
        currencies=found,
        budget=_budget(plan, found, now, await _currency(session, tenant_id, plan, now)),
        unrated_events=unrated,
    )


async def _first_use(session: AsyncSession, tenant_id: str | None) -> date | None:
    query = select(func.min(UsageDayRow.day))
    if tenant_id is not None:
        query = query.where(UsageDayRow.tenant_id == tenant_id)
    return await session.scalar(query)


def _of_currency(
    currency: str, by_day: Days, last_days: list[date], now: datetime
) -> CurrencyForecast:
    start, _ = month_of(now)
    ours = {day: amount for day, amount in sorted(by_day.items()) if day >= start.date()}
    spent = exact_sum(ours.values())
    found = projected(now, spent, by_day, last_days)
    last_month, _ = month_of(start - _HOUR)
    before = (amount for day, amount in by_day.items() if last_month.date() <= day < start.date())
    return CurrencyForecast(
        currency=currency,
        spent=money(spent),
        spent_last_month=money(exact_sum(before)),
        days=[DaySpent(day=day, amount=money(amount)) for day, amount in ours.items()],
        full_days=len(last_days),
        mean_day=_text(found.mean_day),
        projected=_about(found.end),
        low=_about(found.low),
        high=_about(found.high),
    )


def _budget(
    caps: PlanTerms | None, currencies: list[CurrencyForecast], now: datetime, currency: str | None
) -> ForecastBudget | None:
    if caps is None or caps.budget is None:
        return None
    ours = next((each for each in currencies if each.currency == currency), None)
    spent = Decimal(0) if ours is None else Decimal(ours.spent)
    mean = Decimal(0) if ours is None else Decimal(ours.mean_day or 0)
    soft = None if caps.budget_soft is None else caps.budget * Decimal(str(caps.budget_soft))
    return ForecastBudget(
        amount=money(caps.budget),
        currency=currency,
        soft=_text(soft),
        action=caps.budget_action,
        reached_on=reached_on(now, spent, mean, caps.budget),
        soft_reached_on=None if soft is None else reached_on(now, spent, mean, soft),
    )


async def _currency(
    session: AsyncSession, tenant_id: str | None, plan: PlanTerms | None, now: datetime
) -> str | None:
    """That of the budget of this plan, if it has one."""
    if tenant_id is None or plan is None or plan.budget is None:
        return None
    return next(iter(await charged_in(session, tenant_id, plan.name, now)), None)


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else money(amount)


def _about(amount: Decimal | None) -> str | None:
    return None if amount is None else money(estimate(amount))
