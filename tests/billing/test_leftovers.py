"""What cannot be billed is kept, told of and tried again; it stops nothing else."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError
from sqlalchemy.ext.asyncio import AsyncSession

from api_harness import Api, TestTenant
from tenora_engine.events import UsageRecord
from tenora_platform.billing import rating, service
from tenora_platform.billing import repository as billing
from tenora_platform.usage import repository
from tenora_platform.usage.ids import event_of
from tenora_platform.usage.leftovers import Leftovers
from tenora_platform.usage.records import record_of
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.tables import DeadLetterRow
from usage_records import find_event, price_of, usage_record

_numbers = itertools.count()
PRICES = {"uncached_prefill": "10", "cached_prefill": "10", "output": "10"}


@pytest.fixture(scope="module")
async def payer(api: Api) -> TestTenant:
    return await api.new_tenant("payer")


def sink_of(api: Api) -> UsageSink:
    return UsageSink(api.engine, api.state.db)


def leftovers_of(api: Api) -> Leftovers:
    return Leftovers(api.state.db, sink_of(api), api.state.unbilled)


def record(payer: TestTenant, **changes: Any) -> UsageRecord:
    return usage_record(f"left{next(_numbers)}:0", payer.id, **changes)


async def is_event(api: Api, event_id: str) -> bool:
    async with api.state.db.admin_session() as session:
        return await find_event(session, event_id) is not None


async def is_rated(api: Api, event_id: str) -> bool:
    async with api.state.db.admin_session() as session:
        return await price_of(session, event_id) is not None


async def letter(api: Api, event_id: str) -> DeadLetterRow | None:
    async with api.state.db.admin_session() as session:
        return await session.get(DeadLetterRow, event_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"finished_s": 253402300799.99999},  # rounds up to the year 10000
        {"finished_s": 7258118400.0},  # 2200
        {"arrival_s": 0.0},
        {"first_token_s": float("inf")},
        {"tier": "\ud800"},
        {"request_id": "r" * 5000},
        {"context": {"tenant_id": "\udfff", "model": "m"}},
        {"context": {"tenant_id": "payer", "model": 5}},
        {"prompt_tokens": 2**80},
        {"index": 2**40},
    ],
)
async def test_a_poisoned_record_stops_nothing(
    api: Api, payer: TestTenant, changes: dict[str, Any]
) -> None:
    """Acknowledged only when it is durable, as an event or, whole, as a dead letter."""
    if changes.get("context", {}).get("tenant_id") == "payer":
        changes = {"context": {**changes["context"], "tenant_id": payer.id}}
    bad, good = record(payer, **changes), record(payer)
    acknowledged: list[str] = []

    class Engine:
        async def unacknowledged_usage(self) -> list[UsageRecord]:
            return [bad, good]

        async def acknowledge_usage(self, event_ids: list[str]) -> None:
            assert await letter(api, bad.event_id) is not None
            assert await is_event(api, good.event_id)
            acknowledged.extend(event_ids)

    engine: Any = Engine()
    assert await UsageSink(engine, api.state.db).run_once() == 2
    assert acknowledged == [bad.event_id, good.event_id]
    assert not await is_event(api, bad.event_id)
    kept = await letter(api, bad.event_id)
    assert kept is not None
    assert kept.reason
    if kept.raw is not None:
        assert msgspec.msgpack.decode(kept.raw) == msgspec.to_builtins(bad)


async def test_what_nobody_foresaw_is_set_aside_alone(
    api: Api, payer: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [record(payer) for _ in range(3)]
    poisoned = records[1].event_id
    key = event_of(poisoned).key
    add_events = repository.add_events

    async def picky(session: AsyncSession, rows: list[tuple[Any, ...]]) -> repository.Keys:
        if any(values[:2] == key for values in rows):
            raise LookupError("a surprise")
        return await add_events(session, rows)

    monkeypatch.setattr(repository, "add_events", picky)
    await sink_of(api).store(records)
    assert [await is_event(api, each.event_id) for each in records] == [True, False, True]
    kept = await letter(api, poisoned)
    assert kept is not None
    assert "a surprise" in kept.reason
    assert kept.raw is not None
    assert record_of(kept.raw) == records[1]
    monkeypatch.undo()
    await leftovers_of(api).run_once()
    assert await is_rated(api, poisoned)  # nothing was lost, and it is billed by now
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
    assert poisoned not in {each["event_id"] for each in shown["newest_dead_letters"]}


async def test_letters_from_before_are_made_good(api: Api, payer: TestTenant) -> None:
    """They were refused when a price could not be read; their bytes were not kept then."""
    before = record(payer)
    async with api.state.db.admin_session() as session:
        await session.execute(
            text(
                "INSERT INTO usage_dead_letters (event_id, record, reason) VALUES (:id, :r, :why)"
            ),
            {
                "id": before.event_id,
                "r": msgspec.json.encode(before).decode(),
                "why": "the database refused it: timestamp too large (after year 10K)",
            },
        )
    await leftovers_of(api).run_once()
    assert await is_rated(api, before.event_id)


async def test_events_survive_what_rating_does_not(
    api: Api, payer: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price list cannot be read: events are stored all the same, and rated when it can."""
    made = [record(payer) for _ in range(2)]
    with monkeypatch.context() as patch:

        async def unreadable(*_: Any, **__: Any) -> Any:
            raise DataError("select", {}, ValueError("timestamp too large (after year 10K)"))

        patch.setattr(billing, "price_lists", unreadable)
        await sink_of(api).store(made)
        for each in made:
            assert await is_event(api, each.event_id)
            assert not await is_rated(api, each.event_id)
            assert await letter(api, each.event_id) is None
        await leftovers_of(api).run_once()
        await check_alarm(api, made[0].event_id, "timestamp too large")
    await leftovers_of(api).run_once()
    for each in made:
        assert await is_rated(api, each.event_id)
    assert "price" not in (await api.http.get("/readyz")).text


async def check_alarm(api: Api, event_id: str, reason: str) -> None:
    ready = await api.http.get("/readyz")
    assert ready.status_code == 200
    assert any("have no price" in warning for warning in ready.json()["warnings"])
    waiting = int(api.state.unbilled.unrated_events)
    assert waiting
    assert f"tenora_usage_unrated_events {waiting}.0" in (await api.http.get("/metrics")).text
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
    assert shown["settled"] is False
    assert shown["unrated_events"] == waiting
    reasons = {each["event_id"]: each["reason"] for each in shown["newest_unrated_events"]}
    assert reason in reasons[event_of(event_id).text]


async def test_one_that_cannot_be_rated_keeps_no_other(
    api: Api, payer: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [record(payer) for _ in range(5)]
    rate_one = rating.priced

    def fails(prices: Any, event: Any) -> Any:
        if event.event_id == event_of(made[2].event_id).text:
            raise ArithmeticError("a surprise")
        return rate_one(prices, event)

    with monkeypatch.context() as patch:
        patch.setattr(service, "priced", fails)
        await sink_of(api).store(made)
        assert not await is_rated(api, made[0].event_id)  # together with the others at first
        await leftovers_of(api).run_once()
        rated = [await is_rated(api, each.event_id) for each in made]
        assert rated == [True, True, False, True, True]
    await leftovers_of(api).run_once()
    assert await is_rated(api, made[2].event_id)


async def test_an_amount_that_no_book_holds_waits(api: Api, payer: TestTenant) -> None:
    dear = dict.fromkeys(PRICES, "9999999999.999999")
    body = {"model": "dear", "effective_from": "2031-01-01T00:00:00Z", "per_million": dear}
    assert (await api.admin("POST", "/admin/v1/prices", json=body)).status_code == 201
    at = datetime(2031, 6, 1, tzinfo=UTC).timestamp()
    context = {"tenant_id": payer.id, "model": "dear", "plan": "standard"}
    absurd = record(payer, context=context, finished_s=at, output_tokens=2**31 - 1)
    usual = record(payer, context=context, finished_s=at)
    await sink_of(api).store([absurd, usual])
    assert await is_event(api, absurd.event_id)
    assert not await is_rated(api, absurd.event_id)
    assert await is_rated(api, usual.event_id)
