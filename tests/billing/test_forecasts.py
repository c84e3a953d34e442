"""Forecasts: the arithmetic beside Python's own statistics, and over HTTP beside the costs that the
books have."""

from __future__ import annotations

import math
import statistics
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_harness import Api, TestTenant
from tenora_platform.forecasts.projection import (
    estimate,
    full_days,
    month_of,
    projected,
    reached_on,
)
from tenora_platform.ids import new_id
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)  # ten days and a half are left


def days_before(now: datetime, count: int) -> list[date]:
    return [now.date() - timedelta(days=n) for n in range(count, 0, -1)]


@given(
    amounts=st.lists(st.integers(0, 10**9), min_size=1, max_size=7),
    spent=st.integers(0, 10**10),
)
def test_it_goes_on_as_the_last_days_went(amounts: list[int], spent: int) -> None:
    days = days_before(NOON, len(amounts))
    by_day = {day: Decimal(amount) / 100 for day, amount in zip(days, amounts, strict=True)}
    found = projected(NOON, Decimal(spent) / 100, by_day, days)
    plain = [amount / 100 for amount in amounts]
    mean = statistics.fmean(plain)
    assert found.mean_day is not None
    assert found.end is not None
    assert float(found.mean_day) == pytest.approx(mean, abs=1e-6)
    assert float(found.end) == pytest.approx(spent / 100 + mean * 10.5, rel=1e-9, abs=1e-6)
    if len(amounts) < 3:
        assert (found.low, found.high) == (None, None)
        return
    assert found.low is not None
    assert found.high is not None
    z = statistics.NormalDist().inv_cdf(0.9)
    spread = z * statistics.stdev(plain) * math.sqrt(10.5 + 10.5**2 / len(amounts))
    assert float(found.high) == pytest.approx(float(found.end) + spread, rel=1e-3, abs=1e-6)
    low = max(spent / 100, float(found.end) - spread)
    assert float(found.low) == pytest.approx(low, rel=1e-3, abs=max(1e-6, spread * 1e-3))


@given(st.decimals(0, 10**9, places=12))
def test_an_estimate_is_told_in_four_digits_or_to_the_cent(amount: Decimal) -> None:
    told = estimate(amount)
    step = min(Decimal("0.01"), amount / 1000)  # of four digits the last is at most that
    assert amount <= told <= amount + step
    assert told == round(told, 12)
    digits = len(told.normalize().as_tuple().digits)
    assert told == round(told, 2) or digits <= 4, told


def test_which_days_it_goes_by() -> None:
    assert full_days(NOON, date(2026, 1, 1)) == days_before(NOON, 7)
    assert full_days(NOON, date(2026, 11, 18)) == days_before(NOON, 2), "since there was any use"
    assert full_days(NOON, date(2026, 11, 20)) == [], "today is not over"
    assert full_days(NOON, None) == []
    assert projected(NOON, Decimal(5), {}, []).end is None
    assert month_of(datetime(2026, 12, 31, 23, tzinfo=UTC)) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )


def test_when_a_budget_is_used_up() -> None:
    ten = Decimal(10)
    assert reached_on(NOON, Decimal(70), ten, Decimal(100)) == date(2026, 11, 23)
    assert reached_on(NOON, Decimal(100), ten, Decimal(100)) == date(2026, 11, 20), "it is"
    assert reached_on(NOON, Decimal(0), ten, Decimal(106)) is None, "not in this month"
    assert reached_on(NOON, Decimal(0), Decimal(0), Decimal(106)) is None


async def used(api: Api, tenant: TestTenant, model: str, at: datetime, tokens: int) -> None:
    end_s = at.timestamp()
    record = usage_record(
        f"{new_id('chatcmpl')}:0",
        tenant.id,
        context={
            "tenant_id": tenant.id,
            "api_key_id": tenant.key_id,
            "model": model,
            "plan": "forecast",
            "adapter_version_id": "",
        },
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=tokens,
        arrival_s=end_s - 1,
        first_token_s=None,
        finished_s=end_s,
    )
    await UsageSink(api.engine, api.state.db).store([record])


async def get(api: Api, key: str, path: str) -> dict[str, Any]:
    answer = await api.call(key, "GET", path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_over_http_it_is_what_the_costs_say(api: Api) -> None:
    await api.put_plan("forecast", {"budget": "1000", "budget_soft": 0.5}, sla_class="default")
    tenant = await api.new_tenant(plan="forecast")
    before = (await get(api, tenant.key, "/v1/forecast"))["currencies"]
    assert before == [], "nothing was used"
    now = datetime.now(UTC)
    old = (now - timedelta(days=40)).isoformat()
    for model, currency in (("in-usd", "USD"), ("in-eur", "EUR")):
        body = {
            "model": model,
            "currency": currency,
            "effective_from": old,
            "per_million": {"uncached_prefill": "1", "cached_prefill": "1", "output": "1000000"},
        }
        assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    for days in (1, 2, 3, 4):
        await used(api, tenant, "in-usd", now - timedelta(days=days), 10 * days)
    await used(api, tenant, "in-eur", now, 7)
    found = await get(api, tenant.key, "/v1/forecast")
    start = f"{now:%Y-%m}-01T00:00:00Z"
    costs = await get(api, tenant.key, f"/v1/costs?start={start}&bucket=1mo")
    this_month = {each["currency"]: each["amount"] for each in costs["data"][0]["results"]}
    currencies = {each["currency"]: each for each in found["currencies"]}
    assert set(currencies) == {"USD", "EUR"}
    for currency, each in currencies.items():
        spent = Decimal(each["spent"])
        assert spent == Decimal(this_month.get(currency, "0"))
        assert sum(Decimal(day["amount"]) for day in each["days"]) == spent
    dollars = currencies["USD"]
    assert dollars["full_days"] == 4
    assert Decimal(dollars["mean_day"]) == 25
    left = found["days_left"]
    assert float(dollars["projected"]) == pytest.approx(
        float(dollars["spent"]) + 25 * left, abs=0.1
    )
    assert Decimal(dollars["spent"]) + Decimal(dollars["spent_last_month"]) == 100
    assert Decimal(currencies["EUR"]["mean_day"]) == 0
    budget = found["budget"]
    assert Decimal(budget["amount"]) == 1000
    assert Decimal(budget["soft"]) == 500
    assert budget["reached_on"] is None
    operators = (await api.admin("GET", f"/admin/v1/forecast?tenant={tenant.id}")).json()
    moving = ("projected", "low", "high")  # with the time that is left: asked a moment later
    for theirs, own in zip(operators["currencies"], found["currencies"], strict=True):
        for name in moving:
            assert float(theirs.pop(name) or 0) == pytest.approx(
                float(own.pop(name) or 0), rel=1e-3
            )
        assert theirs == own
    assert operators["budget"] == budget
    whole = (await api.admin("GET", "/admin/v1/forecast")).json()
    assert whole["budget"] is None
    assert {each["currency"] for each in whole["currencies"]} >= {"USD", "EUR"}
    unknown = await api.admin("GET", "/admin/v1/forecast?tenant=nobody")
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "tenant"
