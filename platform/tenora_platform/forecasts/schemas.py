"""Forecasts over HTTP. Amounts are decimal strings."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel


class DaySpent(BaseModel):
    day: date
    amount: str


class CurrencyForecast(BaseModel):
    """One currency's. `spent` is exact, as GET /v1/costs has it, and so is each of `days`, this
    month's so far. `projected`, `low` and `high` are rounded up to the cent or to four digits,
    whichever is finer. `projected` null: there is no full day yet to go by; `low` and `high` null:
    there are fewer than three. `full_days`: how many the mean is of."""

    currency: str
    spent: str
    spent_last_month: str
    days: list[DaySpent]
    full_days: int
    mean_day: str | None
    projected: str | None
    low: str | None
    high: str | None


class ForecastBudget(BaseModel):
    """The plan's budget of a month, and the line from which on it tells. `reached_on`: the day on
    which it is used up if days go on so, with all currencies added up, as budgets do; null: not in
    this month."""

    amount: str
    soft: str | None
    action: str
    reached_on: date | None
    soft_reached_on: date | None


class Forecast(BaseModel):
    """What this month (UTC) comes to. `currencies` has none before anything was used.
    `unrated_events`: usage without a price yet, which no amount has."""

    object: Literal["forecast"] = "forecast"
    period: str
    start: datetime
    end: datetime
    as_of: datetime
    days_left: float
    method: str
    currencies: list[CurrencyForecast]
    budget: ForecastBudget | None
    unrated_events: int
