"""Whatever is replayed, doubled or crashes on the way: each record is stored once, and costs are
those of a plain model in Python."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text, tuple_
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from api_harness import Api, TestTenant
from platform_fixtures import plain_url
from tenora_engine.events import UsageRecord
from tenora_platform.db import Database
from tenora_platform.usage.ids import event_of
from tenora_platform.usage.records import BadRecordError, usage_event
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import (
    DeadLetterRow,
    UsageEventRow,
    UsageSeriesRow,
)
from usage_records import find_event, usage_record, waits

DEFAULT = {
    "uncached_prefill": Fraction(10, 100),
    "cached_prefill": Fraction(2, 100),
    "output": Fraction(40, 100),
}
_numbers = itertools.count()


class CrashError(Exception):
    """The process ends here."""


class CrashingDatabase(Database):
    """A database whose next `crashes` transactions end before their commit."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self.secret = inner.secret
        self.crashes = 0

    @asynccontextmanager
    async def admin_session(self) -> AsyncIterator[AsyncSession]:
        async with self._inner.admin_session() as session:
            yield session
            if self.crashes:
                self.crashes -= 1
                raise CrashError


@pytest.fixture(scope="module")
async def tenants(api: Api) -> list[TestTenant]:
    return [await api.new_tenant(f"payer-{number}") for number in range(3)]


def lost_before_commit(db: CrashingDatabase) -> None:
    db.crashes = 1


@settings(max_examples=25)
@given(data=st.data())
async def test_exactly_once(api: Api, tenants: list[TestTenant], data: st.DataObject) -> None:
    run = f"run{next(_numbers)}"
    tokens = st.integers(0, 10**9)
    made: list[UsageRecord] = []
    for number in range(data.draw(st.integers(1, 12))):
        cached, uncached = data.draw(tokens), data.draw(tokens)
        tenant_id = data.draw(st.sampled_from(tenants)).id
        made.append(
            usage_record(
                f"{run}-{number // 2}:{number % 2}",
                tenant_id,
                prompt_tokens=cached + uncached,
                cached_tokens=cached,
                output_tokens=data.draw(tokens),
                context={"tenant_id": tenant_id, "model": run},
            )
        )
    db = CrashingDatabase(api.state.db)
    sink = UsageSink(api.engine, db)
    deliveries = data.draw(st.lists(st.lists(st.sampled_from(made), max_size=8), max_size=6))
    for delivery in [*deliveries, made]:
        how = data.draw(st.sampled_from(["well", "crash before commit", "crash before ack"]))
        if how == "crash before commit":
            lost_before_commit(db)
            with pytest.raises(CrashError):
                await sink.store(delivery)
        if how == "crash before ack":
            await sink.store(delivery)  # the commit holds; the engine gives all of it again
        await sink.store(delivery)
    await check_books(api, run, made)


async def check_books(api: Api, run: str, made: Sequence[UsageRecord]) -> None:
    """Events as they were made, amounts as a model has them, in the rows and in the sums."""
    ids = {event_of(record.event_id): record for record in made}
    query = select(UsageEventRow, UsageSeriesRow.tenant_id).join(
        UsageSeriesRow, UsageSeriesRow.id == UsageEventRow.series_id
    )
    named = tuple_(UsageEventRow.request, UsageEventRow.sequence).in_([each.key for each in ids])
    async with api.state.db.admin_session() as session:
        rows = (await session.execute(query.where(named))).all()
        sums = await session.execute(
            text(
                "select d.meter, sum(d.quantity), sum(d.amount) from usage_day_meters d "
                "join usage_series s on s.id = d.series_id where s.model = :model group by 1"
            ),
            {"model": run},
        )
        summed = {meter: (int(quantity), Fraction(amount)) for meter, quantity, amount in sums}
    by_key = {each.key: record for each, record in ids.items()}
    assert sorted((row.request, row.sequence) for row, _ in rows) == sorted(by_key)
    total = dict.fromkeys(DEFAULT, 0)
    for row, tenant_id in rows:
        record = by_key[row.request, row.sequence]
        assert tenant_id == record.context["tenant_id"]
        assert row.output_tokens == record.output_tokens
        assert row.event_time.timestamp() == record.finished_s
        quantities = {
            "uncached_prefill": record.prompt_tokens - record.cached_tokens,
            "cached_prefill": record.cached_tokens,
            "output": record.output_tokens,
        }
        exact = sum((q * DEFAULT[meter] for meter, q in quantities.items()), Fraction(0)) / 10**6
        assert Fraction(row.amount or 0) == exact
        for meter, quantity in quantities.items():
            total[meter] += quantity
    expected = {meter: (q, q * DEFAULT[meter] / 10**6) for meter, q in total.items() if q}
    assert {meter: summed[meter] for meter in DEFAULT if meter in summed} == expected
    assert summed["sequences"] == (len(made), Fraction(0))


async def test_acknowledged_after_the_commit(api: Api, tenants: list[TestTenant]) -> None:
    """The running sink empties the engine's outbox, and what it acknowledged is stored."""
    record = usage_record(f"ack{next(_numbers)}:0", tenants[0].id)
    order: list[str] = []

    class Engine:
        async def unacknowledged_usage(self) -> Sequence[UsageRecord]:
            return [record]

        async def acknowledge_usage(self, event_ids: Sequence[str]) -> None:
            async with api.state.db.admin_session() as session:
                assert await find_event(session, record.event_id) is not None
            order.extend(event_ids)

    engine: Any = Engine()
    assert await UsageSink(engine, api.state.db).run_once() == 1
    assert order == [record.event_id]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"context": {}}, "no tenant"),
        ({"context": {"tenant_id": "tenant_unknown", "model": "m"}}, "no tenant"),
        ({"context": {"tenant_id": "a\0b", "model": "m"}}, "no tenant"),
        ({"output_tokens": -1}, "not possible"),
        ({"output_tokens": 2**62}, "not possible"),
        ({"cached_tokens": 11}, "more tokens were cached"),
        ({"finished_s": float("nan")}, "not a time"),
        ({"finished_s": 1e300}, "not a time"),
        ({"tier": "a\0b"}, "NUL"),
    ],
)
async def test_bad_records_stop_nothing(
    api: Api, tenants: list[TestTenant], changes: dict[str, Any], reason: str
) -> None:
    number = next(_numbers)
    bad = usage_record(f"bad{number}:0", tenants[0].id, **changes)
    good = usage_record(f"good{number}:0", tenants[0].id)
    sink = UsageSink(api.engine, api.state.db)
    await sink.store([bad, good])
    await sink.store([bad, good])
    async with api.state.db.admin_session() as session:
        assert await find_event(session, good.event_id) is not None
        assert await find_event(session, bad.event_id) is None
        letter = await session.get(DeadLetterRow, bad.event_id)
    assert letter is not None
    assert reason in letter.reason
    assert letter.record["event_id"] == bad.event_id


async def test_facts_beyond_their_columns_are_capped(api: Api, tenants: list[TestTenant]) -> None:
    """They are not paid for, so nobody's bill waits for them."""
    record = usage_record(f"often{next(_numbers)}:0", tenants[0].id)
    often = msgspec.structs.replace(record, preemptions=2**40)
    await UsageSink(api.engine, api.state.db).store([often])
    async with api.state.db.admin_session() as session:
        event = await find_event(session, often.event_id)
    assert event is not None
    assert event.preemptions == 2**15 - 1


@pytest.mark.parametrize("statement", ["UPDATE {} SET tenant_no = tenant_no", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["usage_events", "occupancy_events"])
async def test_append_only(api: Api, statement: str, table: str) -> None:
    with pytest.raises(DBAPIError):
        async with api.state.db.admin_session() as session:
            await session.execute(text(statement.format(table)))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE usage_events SET price_version_no = 1, amount = 0",
        "UPDATE usage_events SET output_tokens = 0",
        "UPDATE usage_events SET price_version_no = NULL, amount = NULL",
        "DELETE FROM usage_events",
        "TRUNCATE usage_events",
    ],
)
async def test_what_was_rated_is_not_changed_by_its_owner_either(
    api: Api, tenants: list[TestTenant], database_url: str, statement: str
) -> None:
    record = usage_record(f"kept{next(_numbers)}:0", tenants[0].id)
    await UsageSink(api.engine, api.state.db).store([record])
    with psycopg.connect(plain_url(database_url)) as owner:
        for part in ("", "_other"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
                owner.execute(statement.replace("usage_events", f"usage_events{part}"))
            owner.rollback()


async def test_missing_price_fails_closed_until_there_is_one(api: Api) -> None:
    tenant = await api.new_tenant("early")
    before_any_price = datetime(2019, 6, 1, 12, tzinfo=UTC)
    record = usage_record(
        f"early{next(_numbers)}:0", tenant.id, finished_s=before_any_price.timestamp()
    )
    await UsageSink(api.engine, api.state.db).store([record])
    query = "/v1/costs?start=2019-06-01T00:00:00Z&end=2019-06-02T00:00:00Z&group_by=model"
    bucket = (await api.call(tenant.key, "GET", query)).json()["data"][0]
    assert bucket["results"][0]["unrated_events"] == 1
    assert Decimal(bucket["results"][0]["amount"]) == 0
    price = {
        "effective_from": "2019-01-01T00:00:00Z",
        "per_million": {"uncached_prefill": "1", "cached_prefill": "0.5", "output": "2.000001"},
    }
    made = await api.admin("POST", "/admin/v1/prices", json=price)
    assert made.status_code == 201, made.text
    assert made.json()["effective_to"] == "2020-01-01T00:00:00Z"  # where the default begins
    bucket = (await api.call(tenant.key, "GET", query)).json()["data"][0]
    result = bucket["results"][0]
    assert result["unrated_events"] == 0
    assert result["model"] == "fake-base"
    assert result["amount"] == "0.000018000005"  # 6 * 1 + 4 * 0.5 + 5 * 2.000001, over 10^6
    async with api.state.db.admin_session() as session:
        assert not await waits(session, record.event_id)
    again = await api.admin("POST", "/admin/v1/prices", json=price)
    assert again.status_code == 409


async def test_a_new_price_holds_from_its_moment_on(api: Api) -> None:
    tenant = await api.new_tenant("switch")
    switch = datetime(2031, 3, 1, tzinfo=UTC)
    body = {
        "model": "priced-base",
        "effective_from": switch.isoformat(),
        "per_million": {"uncached_prefill": "10", "cached_prefill": "10", "output": "10"},
    }
    assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    sink = UsageSink(api.engine, api.state.db)
    context = {"tenant_id": tenant.id, "model": "priced-base"}
    for number, at in enumerate((switch - timedelta(microseconds=1), switch)):
        await sink.store(
            [
                usage_record(
                    f"switch{number}:0", tenant.id, context=context, finished_s=at.timestamp()
                )
            ]
        )
    query = "/v1/costs?start=2031-02-28T00:00:00Z&end=2031-03-02T00:00:00Z"
    before, after = (await api.call(tenant.key, "GET", query)).json()["data"]
    assert before["results"][0]["amount"] == "0.000002680000"
    assert after["results"][0]["amount"] == "0.000150000000"


async def test_usage_by_bucket_group_and_page(api: Api) -> None:
    tenant = await api.new_tenant("reader")
    stranger = await api.new_tenant("stranger")
    sink = UsageSink(api.engine, api.state.db)
    begin = datetime(2032, 1, 31, 22, tzinfo=UTC)
    records = []
    for hour in range(4):
        at = (begin + timedelta(hours=hour)).timestamp()
        records += [
            usage_record(f"bucket{hour}:0", tenant.id, finished_s=at),
            usage_record(
                f"bucket{hour}:1",
                tenant.id,
                finished_s=at,
                prompt_tokens=0,
                cached_tokens=0,
                context={"tenant_id": tenant.id, "model": "fake-base", "api_key_id": "key_2"},
            ),
            usage_record(f"other{hour}:0", stranger.id, finished_s=at),
        ]
    await sink.store(records)
    span = "start=2032-01-31T00:00:00Z&end=2032-02-02T00:00:00Z"
    days = (await api.call(tenant.key, "GET", f"/v1/usage?{span}&bucket=1d")).json()["data"]
    assert [day["results"][0]["requests"] for day in days] == [2, 2]
    assert days[0]["results"][0]["prompt_tokens"] == 20
    assert days[0]["results"][0]["cached_tokens"] == 8
    assert days[0]["results"][0]["uncached_tokens"] == 12
    assert days[0]["results"][0]["output_tokens"] == 20
    months = (await api.call(tenant.key, "GET", f"/v1/usage?{span}&bucket=1mo")).json()["data"]
    assert [month["start"] for month in months] == ["2032-01-01T00:00:00Z", "2032-02-01T00:00:00Z"]
    keys = f"/v1/usage?{span}&group_by=api_key,model&limit=1"
    first = (await api.call(tenant.key, "GET", keys)).json()
    assert [row["api_key_id"] for row in first["data"][0]["results"]] == ["key_1", "key_2"]
    assert first["has_more"]
    second = (await api.call(tenant.key, "GET", f"{keys}&page={first['next_page']}")).json()
    assert second["data"][0]["start"] == "2032-02-01T00:00:00Z"
    assert not second["has_more"]
    everyone = (await api.admin("GET", f"/admin/v1/usage?{span}&group_by=tenant")).json()
    ids = {row["tenant_id"] for row in everyone["data"][0]["results"]}
    assert ids == {tenant.id, stranger.id}
    for bad in ("group_by=tenant", "bucket=2d", "page=zzz", "start=2040-01-01T00:00:00Z&end=0"):
        answer = await api.call(tenant.key, "GET", f"/v1/usage?{bad}")
        assert answer.status_code == 400, bad
        assert answer.json()["error"]["param"]


async def test_usage_counts_requests_as_they_were_sent_and_each_sequence(api: Api) -> None:
    """Two requests, of one text with n=2 and of three prompts with n=2: 129 requests were shown for
    a text and a list of 128."""
    tenant = await api.new_tenant("lists")
    for prompt in ("a", ["a", "b", "c"]):
        body = {"model": "fake-base", "prompt": prompt, "n": 2, "max_tokens": 2}
        answer = await api.call(tenant.key, "POST", "/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
    async with asyncio.timeout(10):
        while True:
            data = (await api.call(tenant.key, "GET", "/v1/usage")).json()["data"]
            results = [result for bucket in data for result in bucket["results"]]
            if sum(result["sequences"] for result in results) == 8:
                break
            await asyncio.sleep(0.05)
    assert sum(result["requests"] for result in results) == 2
    async with api.state.db.tenant_session(tenant.id) as session:
        query = select(UsageEventRow.request, UsageEventRow.sequence)
        events = (await session.execute(query)).all()
    by_request = defaultdict(set)
    for request, sequence in events:
        by_request[request].add(sequence)
    assert sorted(by_request.values(), key=len) == [{0, 1}, {0, 1, 2, 3, 4, 5}]


@pytest.mark.parametrize("first", ["-1", "x", "9" * 30, str(2**31 - 1)])
async def test_a_place_that_no_request_has_is_set_aside(first: str) -> None:
    context = {"tenant_id": "t", "model": "m", "first_sequence": first}
    with pytest.raises(BadRecordError, match="sequence"):
        usage_event(usage_record("e:1", "t", context=context, index=1))


async def test_a_request_is_billed(api: Api) -> None:
    """Through the whole platform: a chat request shows in usage and costs."""
    tenant = await api.new_tenant("whole way")
    body = {"model": "fake-base", "messages": [{"role": "user", "content": "Hi"}], "n": 2}
    usage = (await api.call(tenant.key, "POST", "/v1/chat/completions", json=body)).json()["usage"]
    path = "/v1/usage?group_by=api_key"
    async with asyncio.timeout(10):
        while True:
            results = (await api.call(tenant.key, "GET", path)).json()["data"][-1]["results"]
            if results and results[0]["output_tokens"] == usage["completion_tokens"]:
                break
            await asyncio.sleep(0.02)
    assert results[0]["api_key_id"] == tenant.key_id
    assert results[0]["requests"] == 1
    assert results[0]["prompt_tokens"] == usage["prompt_tokens"]
    costs = (await api.call(tenant.key, "GET", "/v1/costs")).json()["data"][-1]["results"][0]
    prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    exact = prompt * DEFAULT["uncached_prefill"] + output * DEFAULT["output"]
    assert Fraction(costs["amount"]) == exact / 10**6
    assert costs["currency"] == "USD"
