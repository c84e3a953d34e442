"""Forecasts over HTTP. Amounts are decimal strings."""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel


class DaySpent(BaseModel):
    day: date
    amount: str


class CurrencyForecast(BaseModel):
    """The forecast in one currency. `spent` is exact, as in GET /v1/costs, and so are `days`, the
    days of this month so far. `projected`, `low` and `high` are rounded up to the cent or to four
    digits, whichever is finer. `projected` is null until there is a full day to calculate from;
    `low` and `high` are null until there are three. `full_days` is the number of days that the mean
    is over."""

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
    """The plan's monthly budget and its soft limit, in the `currency` of the tenant's price list
    (null while none is in force). `reached_on` is the day on which the budget will be used up if
    spending in that currency continues like this; null if that is not within this month."""

    amount: str
    currency: str | None
    soft: str | None
    action: str
    reached_on: date | None
    soft_reached_on: date | None


class Forecast(BaseModel):
    """The projected cost of this month (UTC). `currencies` is empty until something has been used.
    `unrated_events` counts usage without a price, which is in no amount."""

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
