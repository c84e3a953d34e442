"""What tenants cost in a month, day by day, with a forecast and the budget of their plan: the
operator's page of spend. Each currency by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.auth import BudgetAction
from tenora_platform.billing.currencies import WITHOUT_PRICES
from tenora_platform.billing.price_lists import Prices
from tenora_platform.billing.rating import exact_sum
from tenora_platform.billing.repository import price_lists
from tenora_platform.forecasts.projection import DAYS, estimate, full_days, projected
from tenora_platform.schemas import IdItem, ListPage
from tenora_platform.tenants import listing
from tenora_platform.tenants.listing import Chosen
from tenora_platform.tenants.ranks import Days, Ranks
from tenora_platform.tenants.repository import list_plans
from tenora_platform.tenants.tables import PlanRow, TenantRow
from tenora_platform.usage.service import money


class MonthForecast(BaseModel):
    """As in `GET /admin/v1/forecast`: `low` and `high` are null if there are too few days to
    calculate from."""

    projected: str
    low: str | None
    high: str | None
    full_days: int


class MonthCost(BaseModel):
    """The cost in one currency. `days` are those of the month from its first one; today is the
    last. `forecast` exists for the current month once it has a full day."""

    currency: str
    amount: str
    days: list[str]
    forecast: MonthForecast | None


class MonthBudget(BaseModel):
    """The plan's budget as a decimal string, in the `currency` of the tenant's price list. `soft`
    is the fraction of it at which a tenant is warned, or degraded."""

    amount: str
    currency: str
    soft: float | None
    action: BudgetAction


class TenantCosts(IdItem):
    """`id` is the tenant's. `unrated_events` have no price yet, and are in no amount."""

    object: Literal["tenant_costs"] = "tenant_costs"
    name: str
    plan: str
    status: Literal["active", "suspended"]
    costs: list[MonthCost]
    unrated_events: int
    budget: MonthBudget | None


class TenantCostsPage(ListPage[TenantCosts]):
    """`month` with its `start` and `end` (exclusive); `total` is the number of matching tenants."""

    month: str
    start: date
    end: date
    total: int


async def costs_page(
    session: AsyncSession,
    ranks: Ranks,
    chosen: Chosen,
    days: Days,
    *,
    after: str | None,
    limit: int,
) -> TenantCostsPage:
    rows = await listing.page(session, ranks, chosen, days, after=after, limit=limit)
    now = datetime.now(UTC)
    ids = [row.id for row in rows]
    used = await listing.used(session, ids, days, since=_since(days))
    first = await listing.first_use(session, ids) if _runs(days) else {}
    budgets = await _budgets(session, rows, now)
    shown = [
        TenantCosts(
            id=row.id,
            name=row.name,
            plan=row.plan,
            status="suspended" if row.status == "suspended" else "active",
            costs=month_costs(used[row.id].amounts, first.get(row.id), days, now),
            unrated_events=used[row.id].unrated,
            budget=budgets.get(row.id),
        )
        for row in rows
    ]
    return TenantCostsPage.of(
        shown,
        limit,
        month=f"{days.first:%Y-%m}",
        start=days.first,
        end=days.end,
        total=await listing.count(session, chosen),
    )


def month_costs(
    amounts: Mapping[str, Mapping[date, Decimal]], first_use: date | None, days: Days, now: datetime
) -> list[MonthCost]:
    """By currency, those without a cost in the month left out."""
    found = []
    last = days.today if _runs(days) else days.end - timedelta(days=1)
    shown = [days.first + timedelta(days=each) for each in range((last - days.first).days + 1)]
    for currency, by_day in sorted(amounts.items()):
        of_month = [by_day.get(day, Decimal(0)) for day in shown]
        if not any(of_month):
            continue
        spent = exact_sum(of_month)
        found.append(
            MonthCost(
                currency=currency,
                amount=money(spent),
                days=[money(each) for each in of_month],
                forecast=_ahead(spent, by_day, first_use, now) if _runs(days) else None,
            )
        )
    return found


def _ahead(
    spent: Decimal, by_day: Mapping[date, Decimal], first_use: date | None, now: datetime
) -> MonthForecast | None:
    last_days = full_days(now, first_use)
    found = projected(now, spent, by_day, last_days)
    if found.end is None:
        return None
    return MonthForecast(
        projected=money(estimate(found.end)),
        low=None if found.low is None else money(estimate(found.low)),
        high=None if found.high is None else money(estimate(found.high)),
        full_days=len(last_days),
    )


def _runs(days: Days) -> bool:
    return days.first <= days.today < days.end


def _since(days: Days) -> date:
    """With the days before the month that its forecast looks at, if it is to have one."""
    return min(days.first, days.today - timedelta(days=DAYS)) if _runs(days) else days.first


async def _budgets(
    session: AsyncSession, rows: Sequence[TenantRow], now: datetime
) -> dict[str, MonthBudget]:
    """Of the tenants whose plan has one."""
    plans = {plan.name: plan for plan in await list_plans(session) if plan.budget is not None}
    having = [row for row in rows if row.plan in plans]
    if not having:
        return {}
    ids = [row.id for row in having]
    prices = Prices(await price_lists(session, now, now, tenants=ids))
    return {row.id: _budget(plans[row.plan], row, prices, now) for row in having}


def _budget(plan: PlanRow, row: TenantRow, prices: Prices, now: datetime) -> MonthBudget:
    charged = prices.currencies_of(row.id, row.plan, now)
    return MonthBudget.model_validate(
        {
            "amount": money(plan.budget or Decimal(0)),
            "currency": next(iter(charged), WITHOUT_PRICES),
            "soft": plan.budget_soft,
            "action": plan.budget_action,
        }
    )
