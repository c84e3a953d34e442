"""Sums by hour and day against a plain sum over the events, in whatever order events, late ratings,
doubles and two sinks come; and made anew."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from api_harness import Api, TestTenant
from tenora_engine.events import UsageRecord
from tenora_platform.billing.service import rate_waiting
from tenora_platform.ids import new_id
from tenora_platform.usage.archive import UsageArchive
from tenora_platform.usage.rebuild import rebuild_sums
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import (
    UsageEventRow,
    UsageSeriesRow,
)
from usage_records import usage_record

_numbers = itertools.count()
BEGIN = datetime(2011, 1, 30, 22, tzinfo=UTC)  # before any price; two months within reach
FLAT: dict[str, Any] = {
    "uncached_prefill": "3",
    "cached_prefill": "0.5",
    "output": "7.000001",
    "cold_load": "1000",
}
STEPS: dict[str, Any] = {
    **FLAT,
    "output": [{"from": 0, "price": "9"}, {"from": 1000, "price": "2.5"}],
}


@pytest.fixture(scope="module")
async def tenants(api: Api) -> list[TestTenant]:
    return [await api.new_tenant(f"summed-{number}") for number in range(2)]


@pytest.fixture(scope="module")
def archive(api: Api) -> UsageArchive:
    return UsageArchive(api.state.db, api.state.objects, "tenora")


@st.composite
def records(draw: st.DrawFn, tenants: list[TestTenant], model: str) -> UsageRecord:
    tenant, cached = draw(st.sampled_from(tenants)), draw(st.integers(0, 3000))
    ended = BEGIN + timedelta(minutes=draw(st.integers(0, 60 * 60)))
    return usage_record(
        f"{new_id('chatcmpl')}:{draw(st.integers(0, 2))}",
        tenant.id,
        prompt_tokens=cached + draw(st.integers(0, 3000)),
        cached_tokens=cached,
        output_tokens=draw(st.integers(0, 3000)),
        cold_load=draw(st.booleans()),
        tier=draw(st.sampled_from(["default", "flex"])),
        arrival_s=ended.timestamp() - 1,
        first_token_s=None,
        finished_s=ended.timestamp(),
        context={"tenant_id": tenant.id, "model": model},
    )


@settings(max_examples=12)
@given(data=st.data())
async def test_sums_are_those_of_the_events(
    api: Api, tenants: list[TestTenant], archive: UsageArchive, data: st.DataObject
) -> None:
    model = f"summed-{next(_numbers)}"
    made = data.draw(st.lists(records(tenants, model), min_size=1, max_size=12), "made")
    sinks = [UsageSink(api.engine, api.state.db) for _ in range(2)]
    prices = data.draw(st.sampled_from([FLAT, STEPS]), "prices")
    some = st.lists(st.sampled_from(made), max_size=8)
    actions = data.draw(st.lists(st.sampled_from(["one", "two", "price"]), max_size=5), "actions")
    priced = False
    for action in [*actions, "all", "price"]:
        if action == "price" and not priced:
            await price(api, model, prices)
            priced = True
        elif action == "price":
            await rate_waiting(api.state.db)
        elif action == "two":
            drawn = [data.draw(some, "at once") for _ in sinks]  # a draw may end the example
            await asyncio.gather(*map(UsageSink.store, sinks, drawn))
        else:
            await sinks[0].store(made if action == "all" else data.draw(some, "alone"))
        await compare(api, model, prices)
    stored = await sums(api, model)
    for month in (date(2011, 1, 31), date(2011, 2, 1)):
        await rebuild_sums(api.state.db, archive, month)
    assert await sums(api, model) == stored


async def price(api: Api, model: str, prices: dict[str, Any]) -> None:
    """Events from the year in which they ended on; what waits is rated."""
    body = {"model": model, "effective_from": "2010-01-01T00:00:00Z", "per_million": prices}
    answer = await api.admin("POST", "/admin/v1/prices", json=body)
    assert answer.status_code == 201, answer.text


Sums = dict[tuple[Any, ...], tuple[int, Fraction]]


async def sums(api: Api, model: str) -> tuple[Sums, Sums]:
    """By hour and by day, without what has become 0."""
    found = []
    async with api.state.db.admin_session() as session:
        for unit in ("hour", "day"):
            query = text(
                f"select u.tenant_id, u.{unit}, u.series_id, u.meter, u.price_version_no, "
                f"u.quantity, u.amount from usage_{unit}_meters u "
                "join usage_series s on s.id = u.series_id where s.model = :model"
            )
            rows = (await session.execute(query, {"model": model})).all()
            found.append({tuple(each[:5]): (each[5], Fraction(each[6])) for each in rows})
    return found[0], found[1]


async def compare(api: Api, model: str, prices: dict[str, Any]) -> None:
    query = select(UsageEventRow, UsageSeriesRow).join(
        UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id
    )
    async with api.state.db.admin_session() as session:
        rows = (await session.execute(query.where(UsageSeriesRow.model == model))).all()
    hours: defaultdict[Any, list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    days: defaultdict[Any, list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    for event, series in rows:
        at = event.event_time
        hour = at.replace(minute=0, second=0, microsecond=0)
        for meter, quantity, amount in meters_of(event, prices):
            for total, begin in ((hours, hour), (days, at.date())):
                key = (series.tenant_id, begin, series.id, meter, event.price_version_no or 0)
                total[key][0] += quantity
                total[key][1] += amount
    expected = tuple(
        {key: (int(quantity), amount) for key, (quantity, amount) in total.items() if quantity}
        for total in (hours, days)
    )
    assert await sums(api, model) == expected


def meters_of(event: UsageEventRow, prices: dict[str, Any]) -> list[tuple[str, int, Fraction]]:
    """By the text of the price list alone."""
    free = Fraction(0)
    found = [("sequences", 1, free), ("requests", int(event.sequence == 0), free)]
    quantities = {
        "uncached_prefill": event.prompt_tokens - event.cached_tokens,
        "cached_prefill": event.cached_tokens,
        "output": event.output_tokens,
        "cold_load": event.cold_loads,
    }
    if event.price_version_no is None:
        return [*found, ("unrated", 1, free), *((m, q, free) for m, q in quantities.items())]
    amount = Fraction(event.amount or 0)
    found.append(("charged_nanos", -(-amount * 10**9 // 1), free))
    if event.price_version_no == 0:
        assert not any(quantities.values())
        return found
    lines = [
        (meter, quantity, cost(prices[meter], quantity, position))
        for (meter, quantity), position in zip(
            quantities.items(), event.positions or (0, 0, 0, 0), strict=True
        )
    ]
    assert sum((line[2] for line in lines), free) == amount
    return [*found, *lines]


def cost(price: Any, quantity: int, position: int) -> Fraction:
    if isinstance(price, str):
        return quantity * Fraction(price) / 10**6
    (_, dear), (step, cheap) = ((each["from"], Fraction(each["price"])) for each in price)
    at_dear = max(0, min(step, position + quantity) - position)
    total: Fraction = at_dear * dear + (quantity - at_dear) * cheap
    return total / 10**6


async def test_wrong_sums_are_made_right(
    api: Api, tenants: list[TestTenant], archive: UsageArchive
) -> None:
    ended = datetime(2033, 5, 31, 23, 59, tzinfo=UTC)
    model = f"summed-{next(_numbers)}"
    context = {"tenant_id": tenants[0].id, "model": model}
    for late in range(2):
        at = (ended + timedelta(minutes=late)).timestamp()
        record = usage_record(
            f"{new_id('cmpl')}:0", tenants[0].id, finished_s=at, arrival_s=at, context=context
        )
        await UsageSink(api.engine, api.state.db).store([record])
    right = await sums(api, model)
    async with api.state.db.admin_session() as session:
        await session.execute(text("update usage_days set output = output + 1"))
        await session.execute(text("delete from usage_hours where output > 0"))
        await session.execute(text("delete from ledger_due"))
    await rebuild_sums(api.state.db, archive, date(2033, 5, 7))
    assert await sums(api, model) != right  # one of two months
    await rebuild_sums(api.state.db, archive, date(2033, 6, 30))
    assert await sums(api, model) == right
    async with api.state.db.admin_session() as session:
        query = text("select day from ledger_due where tenant_id = :t order by 1")
        due = list(await session.scalars(query, {"t": tenants[0].id}))
    assert due == [date(2033, 5, 31), date(2033, 6, 1)]
