"""The API's copies of usage records: what an engine takes with it is billed from them, exactly
once, whatever else comes; without Redis they wait; one that cannot be read stops no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import text

from api_harness import SEAL, Api, TestTenant
from tenora_engine.events import UsageRecord
from tenora_engine.sealing import Seal
from tenora_platform.ids import new_id
from tenora_platform.operations.metrics import Metrics
from tenora_platform.usage import copies
from tenora_platform.usage.copies import STREAM, CopyReader, UsageCopies
from tenora_platform.usage.engine_totals import TotalsKeeper
from tenora_platform.usage.leftovers import Leftovers, Unbilled
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

BODY = {"model": "fake-base", "messages": [{"role": "user", "content": "x"}], "n": 2}


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    await api.state.redis.delete(STREAM)
    return await api.new_tenant("copied", plan="premium")


@pytest.fixture
async def reader(api: Api) -> AsyncIterator[CopyReader]:
    """One that takes every copy for old enough."""
    sink = UsageSink(api.engine, api.state.db)
    yield CopyReader(
        api.state.redis, api.state.seal, api.state.db, sink, api.state.metrics, age_s=-1.0
    )
    api.engine.keeps_usage = False


async def used(api: Api, tenant: TestTenant, what: str) -> int:
    answer = await api.call(tenant.key, "GET", "/v1/usage")
    buckets = answer.json()["data"]
    return sum(result[what] for bucket in buckets for result in bucket["results"])


async def events_of(api: Api, tenant: TestTenant) -> int:
    return await used(api, tenant, "sequences")


async def billed(api: Api, tenant: TestTenant, count: int) -> None:
    for _ in range(200):
        if await events_of(api, tenant) == count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{await events_of(api, tenant)} events, not {count}")


async def dead_letters(api: Api) -> list[str]:
    async with api.state.db.admin_session() as session:
        found = await session.scalars(text("select reason from usage_dead_letters"))
        return list(found)


async def test_what_an_engine_has_lost_is_billed_once(
    api: Api, tenant: TestTenant, reader: CopyReader
) -> None:
    api.engine.keeps_usage = True  # nobody is given any, as by an engine that is gone
    answer = await api.call(tenant.key, "POST", "/v1/chat/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    assert await api.state.redis.xlen(STREAM) == 1, "there before the client had its answer"
    assert await events_of(api, tenant) == 0
    assert await reader.run_once() == 2
    assert await events_of(api, tenant) == 2
    assert await api.state.redis.xlen(STREAM) == 0
    api.engine.keeps_usage = False  # the engine comes back after all
    assert (await api.call(tenant.key, "POST", "/v1/chat/completions", json=BODY)).is_success
    await billed(api, tenant, 4)
    assert await reader.run_once() == 0
    usage = answer.json()["usage"]
    assert await used(api, tenant, "output_tokens") == 2 * usage["completion_tokens"]
    assert await used(api, tenant, "prompt_tokens") == 2 * usage["prompt_tokens"]


async def test_copies_wait_until_they_are_old(api: Api, tenant: TestTenant) -> None:
    await api.call(tenant.key, "POST", "/v1/chat/completions", json=BODY)
    sink = UsageSink(api.engine, api.state.db)
    patient = CopyReader(api.state.redis, api.state.seal, api.state.db, sink, api.state.metrics)
    assert await patient.run_once() == 0
    assert await api.state.redis.xlen(STREAM) == 1


async def test_a_poisoned_copy_stops_no_other_and_is_shown(
    api: Api, tenant: TestTenant, reader: CopyReader
) -> None:
    """Bytes that are no records, records that no event can be made of, and what the database itself
    refuses."""
    good = usage_record(f"{new_id('chatcmpl')}:0", tenant.id, finished_s=time.time())
    strange = msgspec.structs.replace(good, event_id="strange:0", context={})
    refused = [
        msgspec.structs.replace(strange, event_id="nul:0", tenant="a\0b"),
        msgspec.structs.replace(strange, event_id="vast:0", output_tokens=2**64 - 1),
    ]
    copies_of = [msgspec.msgpack.encode([each]) for each in (strange, *refused, good)]
    for copy in (b"\xc1", b"", *copies_of):
        sealed = api.state.seal.close("usage", "", copy, 60)
        await api.state.redis.xadd(STREAM, {"u": sealed})
    await reader.run_once()
    assert await events_of(api, tenant) == 1
    assert await api.state.redis.xlen(STREAM) == 0
    reasons = await dead_letters(api)
    assert sum("a copy of a usage record cannot be read" in reason for reason in reasons) == 2
    assert sum("it names no tenant" in reason for reason in reasons) == 1
    assert sum("it could not be stored" in reason for reason in reasons) == 2
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
    assert shown["dead_letters"] >= 3


async def test_copies_that_somebody_else_wrote_are_parked_and_not_billed(
    api: Api, tenant: TestTenant, reader: CopyReader
) -> None:
    """A billion tokens of a tenant: not sealed, as a single record that dead letters would be
    retried from, sealed by another installation, under another name, and years ago."""
    vast = usage_record(f"{new_id('chatcmpl')}:0", tenant.id, finished_s=time.time())
    vast = msgspec.structs.replace(vast, output_tokens=10**9)
    records, alone = msgspec.msgpack.encode([vast]), msgspec.msgpack.encode(vast)
    other, old = Seal(b"x" * 32), Seal(api.state.secret.key("redis"), clock=lambda: 1e9)
    for copy in (
        records,
        alone,
        other.close("usage", "", records, 60),
        api.state.seal.close("usage", "another name", records, 60),
        api.state.seal.close("identity", "", records, 60),
        old.close("usage", "", records, 60),
    ):
        await api.state.redis.xadd(STREAM, {"u": copy})
    await api.state.redis.xadd(STREAM, {"of": "nobody knows what"})
    before = len(await dead_letters(api))
    assert await reader.run_once() == 0
    await Leftovers(api.state.db, UsageSink(api.engine, api.state.db), Unbilled()).run_once()
    assert await events_of(api, tenant) == 0
    assert await api.state.redis.xlen(STREAM) == 0
    reasons = await dead_letters(api)
    assert len(reasons) == before + 1, "one for all that were found together"
    assert any("without this installation's seal" in reason for reason in reasons)
    assert 'tenora_usage_copies_total{outcome="not_ours"} 7.0' in api.state.metrics.text().decode()
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
    assert any(each["record"].get("copies") == 7 for each in shown["newest_dead_letters"])
    counted = await TotalsKeeper(api.engine, api.state.db).run_once()
    assert not any(each.tenant == tenant.id for each in counted.days)


async def test_a_stream_of_another_type_is_begun_anew(
    api: Api, tenant: TestTenant, reader: CopyReader
) -> None:
    await api.state.redis.set(STREAM, "garbage")
    assert (await api.call(tenant.key, "POST", "/v1/chat/completions", json=BODY)).is_success
    assert await api.state.redis.xlen(STREAM) == 1
    await api.state.redis.set(STREAM, "garbage")
    assert await reader.run_once() == 0


class Away:
    """A Redis that does not answer, until it does."""

    def __init__(self) -> None:
        self.is_away = True
        self.kept: list[Any] = []
        self.has_three = asyncio.Event()

    async def xadd(self, name: str, fields: dict[str, bytes], maxlen: int) -> None:
        if self.is_away:
            raise RedisConnectionError("it is away")
        self.kept.append(fields["u"])
        if len(self.kept) == 3:
            self.has_three.set()


async def test_without_redis_copies_wait_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "UNKEPT_MAX", 3)
    monkeypatch.setattr(copies, "_RETRY_S", 0.01)
    away: Any = Away()
    metrics = Metrics()
    keeper = UsageCopies(away, SEAL, metrics)
    made = [usage_record(f"r{number}:0", "tenant_1") for number in range(5)]
    for record in made:
        kept = keeper.keep([record])
        assert kept is not None
        await kept
    assert keeper.keep([]) is None
    assert b'tenora_usage_copies_total{outcome="dropped"} 2.0' in metrics.text()
    beside = asyncio.create_task(keeper.keep_on())
    await asyncio.sleep(0.05)
    away.is_away = False
    await asyncio.wait_for(away.has_three.wait(), 20)
    beside.cancel()
    opened = [SEAL.open("usage", "", copy) for copy in away.kept]
    found = [msgspec.msgpack.decode(copy or b"", type=list[UsageRecord]) for copy in opened]
    assert found == [[record] for record in made[2:]]


async def test_redis_keeps_no_more_than_it_may(
    api: Api, tenant: TestTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "STREAM_MAX", 200)
    redis: Redis = api.state.redis
    keeper = UsageCopies(redis, SEAL, Metrics())
    record = usage_record("r:0", tenant.id)
    for _ in range(1000):
        kept = keeper.keep([record])
        assert kept is not None
        await kept
    assert 200 <= await redis.xlen(STREAM) < 400  # Redis trims whole nodes of 100
    await redis.delete(STREAM)
