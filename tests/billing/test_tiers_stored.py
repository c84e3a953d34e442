"""Tiers, adapters' own prices and previews through the sink into the books: two workers at once on
one tenant's month, transactions that fail, events that waited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from books import store
from price_lists import BASE, add_prices, cost_of, record_of
from tenora_engine.events import OccupancyRecord, UsageRecord
from tenora_engine.ulid import new_id
from tenora_platform.billing import quantities
from tenora_platform.billing.price_lists import METERS, Meter, Scope, Tier, Tiers
from tenora_platform.billing.prices import Terms, add_price_version
from tenora_platform.billing.rating import SEQUENCE_METERS, graduated
from tenora_platform.billing.service import rate_waiting
from tenora_platform.db import Database
from tenora_platform.usage.residency import ResidencyBooks
from usage_records import find_event

TIERS = [(0, "7"), (100, "3.5"), (450, "1.000001"), (1000, "0")]
OUTPUT = [{"from": quantity, "price": price} for quantity, price in TIERS]


@pytest.fixture
async def payer(api: Api) -> TestTenant:
    return await api.new_tenant("payer")


def as_tiers(tiers: Sequence[tuple[int, str]]) -> Tiers:
    return tuple(Tier(at, Decimal(price)) for at, price in tiers)


class FailingDatabase(Database):
    """A database whose next transactions end before their commit."""

    def __init__(self, inner: Database, fails: int) -> None:
        self.__dict__.update(inner.__dict__)
        self._inner = inner
        self.fails = fails

    @asynccontextmanager
    async def admin_session(self) -> AsyncIterator[AsyncSession]:
        async with self._inner.admin_session() as session:
            yield session
            if self.fails:
                self.fails -= 1
                await asyncio.sleep(0.02)  # others wait for its rows meanwhile
                raise ConnectionError("it ends here")


async def places(api: Api, records: Sequence[UsageRecord]) -> list[tuple[int, int]]:
    """Where each lies in the month's output, by its stored position."""
    found = []
    async with api.state.db.admin_session() as session:
        for each in records:
            row = await find_event(session, each.event_id)
            assert row is not None
            if row.output_tokens:
                assert row.positions is not None
                assert len(row.positions) == len(SEQUENCE_METERS)
                begin = row.positions[SEQUENCE_METERS.index("output")]
                found.append((begin, begin + row.output_tokens))
    return sorted(found)


async def test_tiers_of_two_sinks_at_once(api: Api, payer: TestTenant) -> None:
    """They rate one tenant's month side by side, some of it twice and some in transactions that
    fail: in all it costs what its tiers say, and places have neither gaps nor overlaps."""
    day = datetime(2041, 5, 1, tzinfo=UTC)
    begin = day.isoformat()
    await add_prices(
        api, model="tiers", effective_from=begin, per_million=BASE | {"output": OUTPUT}
    )
    records = [
        record_of(payer, day + timedelta(minutes=number), "tiers", output_tokens=number % 50)
        for number in range(60)
    ]
    failing = FailingDatabase(api.state.db, 4)

    async def sink(first: int, db: Database) -> None:
        for at in range(first, 60, 12):
            batch = records[at : at + 8]  # two of each are the other's too
            while True:
                with contextlib.suppress(ConnectionError):
                    await store(api, batch, db)
                    break

    await asyncio.gather(sink(0, api.state.db), sink(6, failing))
    assert failing.fails == 0
    total = sum(each.output_tokens for each in records)
    assert total > 1000
    expected = graduated(as_tiers(TIERS), total)
    assert await cost_of(api, payer, day) == (expected, 0)
    at = 0
    for begins, ends in await places(api, records):
        assert begins == at
        at = ends
    assert at == total


async def test_what_waited_goes_into_the_same_tiers(api: Api, payer: TestTenant) -> None:
    """Rated late, beside a sink that stores more of the same month."""
    day = datetime(2018, 5, 1, tzinfo=UTC)  # before any price
    early = [record_of(payer, day, "waited", output_tokens=90) for _ in range(8)]
    late = [record_of(payer, day, "waited", output_tokens=70) for _ in range(8)]
    await store(api, early)
    assert await cost_of(api, payer, day) == (Decimal(0), 8)
    await asyncio.gather(
        add_prices(
            api,
            model="waited",
            effective_from=day.isoformat(),
            per_million=BASE | {"output": OUTPUT},
        ),
        *(store(api, late[first::4]) for first in range(4)),
    )
    await rate_waiting(api.state.db)
    total = 8 * (90 + 70)
    expected = graduated(as_tiers(TIERS), total)
    assert await cost_of(api, payer, day) == (expected, 0)
    spans = await places(api, [*early, *late])
    assert [begins for begins, _ in spans] == [0, *(ends for _, ends in spans[:-1])]
    async with api.state.db.admin_session() as session:
        used = await quantities.volumes_of(session, payer.id, day.date())
    assert list(used.values()) == [total]


async def test_what_is_too_dear_takes_no_places(api: Api, payer: TestTenant) -> None:
    """However often it is tried: the next event has the first place of the month."""
    day = datetime(2041, 7, 1, tzinfo=UTC)
    output = [{"price": "600000"}, {"from": 1000, "price": "1000000"}]
    body = {"model": "dear", "effective_from": day.isoformat()}
    await add_prices(api, **body, per_million=BASE | {"output": output})
    await store(api, [record_of(payer, day, "dear", output_tokens=2 * 10**9)])
    for _ in range(3):
        assert await rate_waiting(api.state.db) == 0
    small = record_of(payer, day, "dear", output_tokens=1)
    await store(api, [small])
    assert await cost_of(api, payer, day) == (Decimal("0.6"), 1)
    assert await places(api, [small]) == [(0, 1)]


async def test_an_estimate_reads_how_far_a_tenant_is(api: Api, payer: TestTenant) -> None:
    now = datetime.now(UTC)
    made = await add_prices(
        api, tenant=payer.id, model="near", per_million=BASE | {"output": OUTPUT}
    )
    at = datetime.fromisoformat(made["effective_from"]) + timedelta(milliseconds=1)
    await store(api, [record_of(payer, at, "near", output_tokens=123)])
    book = api.state.budgets._prices
    book._lists = None
    book._used.clear()
    used = await book.used(payer.id)
    assert [(volume.model, volume.meter, count) for volume, count in used.items()] == [
        ("near", "output", 123)
    ]
    assert next(iter(used)).month == now.date().replace(day=1)


@pytest.mark.parametrize("meter", SEQUENCE_METERS)
async def test_a_meter_without_a_price_waits(api: Api, payer: TestTenant, meter: Meter) -> None:
    """Only another class of it has one; what else moved does not make up for it."""
    day = datetime(2041, 6, 1, tzinfo=UTC) + timedelta(days=METERS.index(meter))
    missing = {meter: [{"class": "nobody", "price": "1"}]}
    body = {"model": f"no-{meter}", "effective_from": day.isoformat()}
    made = await add_prices(api, **body, per_million=BASE | missing)
    moved: dict[str, Any] = {"prompt_tokens": 30, "cached_tokens": 10, "output_tokens": 7}
    moved["cold_load"] = True
    await store(api, [record_of(payer, day, f"no-{meter}", **moved)])
    assert await cost_of(api, payer, day) == (Decimal(0), 1)
    path = f"/admin/v1/prices/{made['id']}"
    mended = await api.admin("PATCH", path, json={"per_million": {meter: "1000000"}})
    assert mended.status_code == 200, mended.text
    others = {"uncached_prefill": 20, "cached_prefill": 10, "output": 7, "cold_load": 0}
    price = {"uncached_prefill": 20, "cached_prefill": 10, "output": 7, "cold_load": 1}[meter]
    rest = sum(count for name, count in others.items() if name != meter)
    assert await cost_of(api, payer, day) == (price + Decimal(rest) / 10**6, 0)


def held(payer: TestTenant, kb_s: int, end: datetime, tier: Any) -> OccupancyRecord:
    return OccupancyRecord(
        event_id=new_id("occ"),
        tenant=payer.id,
        adapter_digest="sha256:ab",
        tier=tier,
        kb_s=kb_s,
        begins_s=end.timestamp() - 3600,
        ends_s=end.timestamp(),
    )


async def test_residency_has_tiers_over_two_workers(api: Api, payer: TestTenant) -> None:
    day = datetime(2041, 9, 1, tzinfo=UTC)
    tiers = [(0, "2"), (3_000_000, "0.5")]
    own = {"device_residency": [{"from": at, "price": price} for at, price in tiers]}
    begin = {"model": "held", "effective_from": day.isoformat()}
    await add_prices(api, **begin, per_million=BASE | own)
    hours = [
        held(payer, 700_000 + number, day + timedelta(hours=number + 1), "device")
        for number in range(10)
    ]
    await asyncio.gather(
        *(ResidencyBooks(api.state.db).store(hours[first::3], "held") for first in range(3))
    )
    total = sum(each.kb_s for each in hours)
    assert await cost_of(api, payer, day) == (graduated(as_tiers(tiers), total), 0)
    query = text(
        "select o.positions, o.quantity from occupancy_events o "
        "join tenants t on t.no = o.tenant_no where t.id = :tenant order by o.positions"
    )
    async with api.state.db.admin_session() as session:
        rows = (await session.execute(query, {"tenant": payer.id})).all()
    at = 0
    for positions, quantity in rows:
        assert positions == [at]
        at += quantity
    assert at == total


@pytest.mark.parametrize("tier", ["device", "host"])
async def test_residency_without_a_price_waits(api: Api, payer: TestTenant, tier: str) -> None:
    """As it may of a list that is older than the meter; once it has one, it is rated at once."""
    day = datetime(2041, 10, 1, tzinfo=UTC) + timedelta(days=tier == "host")
    meter, model = f"{tier}_residency", f"free-{tier}"
    terms = Terms("USD", {("output", ""): as_tiers([(0, "1")])})
    async with api.state.db.admin_session() as session:
        made = await add_price_version(
            session, scope=Scope(None, None, None, model), terms=terms, effective_from=day
        )
    hour = held(payer, 3_000_000, day + timedelta(hours=1), tier)
    assert await ResidencyBooks(api.state.db).store([hour], model) == []
    assert await cost_of(api, payer, day) == (Decimal(0), 1)
    path = f"/admin/v1/prices/{made.id}"
    mended = await api.admin("PATCH", path, json={"per_million": {meter: "4"}})
    assert mended.status_code == 200, mended.text
    assert await cost_of(api, payer, day) == (Decimal(12), 0)


async def test_an_adapters_own_price_is_its_owners(api: Api, payer: TestTenant) -> None:
    """Nobody else sees it, and it goes before the tenant's."""
    files = adapter_form(api.engine.model, "dear")
    assert (await api.call(payer.key, "POST", "/v1/adapters", files=files)).status_code == 202
    adapter_id = (await api.call(payer.key, "GET", "/v1/adapters/dear")).json()["id"]
    other = await api.new_tenant("other")
    day = datetime(2041, 7, 1, tzinfo=UTC)
    begin = {"effective_from": day.isoformat()}
    made = await add_prices(api, adapter=adapter_id, **begin, per_million=BASE | {"output": "9"})
    assert made["tenant"] == payer.id
    refused = await api.admin(
        "POST",
        "/admin/v1/prices",
        json={"adapter": adapter_id, "tenant": other.id, "per_million": BASE},
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "adapter")
    await add_prices(api, tenant=payer.id, **begin, per_million=BASE | {"output": "5"})
    own = (await api.call(payer.key, "GET", "/v1/prices")).json()["data"]
    assert [each["adapter"] for each in own][:2] == [adapter_id, None]
    others = (await api.call(other.key, "GET", "/v1/prices")).json()["data"]
    assert made["id"] not in {each["id"] for each in others}
    await store(
        api, [record_of(payer, day, "m", adapter_id=adapter_id), record_of(payer, day, "m")]
    )
    assert await cost_of(api, payer, day) == (Decimal("0.000090") + Decimal("0.000050"), 0)
    late = await api.admin(
        "POST", "/admin/v1/prices", json={"adapter": adapter_id, **begin, "per_million": BASE}
    )
    assert late.status_code == 409


async def test_a_preview_has_what_lists_include_and_ask_for_at_least(api: Api) -> None:
    """Before, it is what the draft of the month's invoice comes to."""
    plan, month = f"due-{new_id('plan')}", datetime.now(UTC).replace(day=1)
    await api.put_plan(plan, {})
    begin = {"effective_from": f"{month:%Y-%m}-01T00:00:00Z"}
    await add_prices(api, plan=plan, minimum="5", included="1.5", **begin)
    buyer, idle = await api.new_tenant("buyer", plan), await api.new_tenant("idle", plan)
    async with api.state.db.admin_session() as session:  # customers for the whole month
        await session.execute(text("update tenants set created_at = '2020-01-01'"))

    async def dues(**body: Any) -> dict[str, tuple[Any, Any]]:
        """(before, after) in dollars by tenant."""
        body = {"month": f"{month:%Y-%m}", "per_million": BASE, **body}
        answer = await api.admin("POST", "/admin/v1/prices/preview", json=body)
        assert answer.status_code == 200, answer.text
        ours = [each for each in answer.json()["data"] if each["tenant"] in (buyer.id, idle.id)]
        names = {buyer.id: "buyer", idle.id: "idle"}
        return {
            names[each["tenant"]]: (money(each["due_before"]), money(each["due_after"]))
            for each in ours
        }

    def money(shown: dict[str, str]) -> Decimal | None:
        return Decimal(shown["USD"]) if shown else None

    async def invoiced(tenant: TestTenant) -> Decimal:
        body = {"tenant": tenant.id, "period": f"{month:%Y-%m}", "draft": True}
        (made,) = (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()["invoices"]
        return Decimal(made["subtotal"])

    for millions, due in ((2, 5), (20, Decimal("20.5"))):
        now = datetime.now(UTC)
        used = record_of(buyer, now, "any", plan=plan, output_tokens=millions * 10**6)
        await store(api, [used])
        assert await invoiced(buyer) == due
        assert await invoiced(idle) == 5
        assert await dues(plan=plan, minimum="7") == {
            "buyer": (due, 22 if millions == 20 else 7),
            "idle": (5, 7),
        }
    assert await dues(minimum="7") == {"buyer": (due, due), "idle": (5, 5)}  # the plan's own holds
    assert await dues(plan=plan, included="100") == {"buyer": (due, None), "idle": (5, None)}
    dearer = {"tenant": buyer.id, "model": "any", "per_million": BASE | {"output": "3"}}
    assert await dues(**dearer) == {"buyer": (due, Decimal("64.5")), "idle": (5, 5)}


async def test_a_preview_is_what_it_would_have_cost(api: Api, payer: TestTenant) -> None:
    """The same usage of a model that had the list, and of one that is only tried by it."""
    day = datetime(2041, 8, 5, tzinfo=UTC)
    prices = {"per_million": BASE | {"output": OUTPUT, "cached_prefill": "0.25"}}
    await add_prices(api, model="had", effective_from="2041-08-01T00:00:00Z", **prices)
    for model in ("had", "tried"):
        moved: dict[str, Any] = {"prompt_tokens": 30, "cached_tokens": 10}
        await store(
            api,
            [
                record_of(
                    payer, day + timedelta(days=at % 9), model, output_tokens=100 + at, **moved
                )
                for at in range(12)
            ],
        )
    body = {"month": "2041-08", "model": "tried", **prices}
    answer = await api.admin("POST", "/admin/v1/prices/preview", json=body)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert shown["month"] == "2041-08"
    (tenant,) = [each for each in shown["data"] if each["tenant"] == payer.id]
    span = "start=2041-08-01&end=2041-09-01&bucket=1mo&group_by=model"
    page = (await api.call(payer.key, "GET", f"/v1/costs?{span}")).json()
    billed = {
        each["model"]: Decimal(each["amount"]) for day in page["data"] for each in day["results"]
    }
    assert Decimal(tenant["before"]["USD"]) == billed["had"] + billed["tried"]
    assert Decimal(tenant["after"]["USD"]) == 2 * billed["had"]
    meters = {each["meter"]: each for each in tenant["meters"]}
    assert meters["output"]["class"] == "default"
    assert meters["output"]["quantity"] == 2 * sum(100 + at for at in range(12))
    assert all(each["unpriced"] == 0 for each in meters.values())
    empty = await api.admin(
        "POST", "/admin/v1/prices/preview", json={"month": "2041-01", "per_million": BASE}
    )
    assert [each for each in empty.json()["data"] if each["tenant"] == payer.id] == []
    for month in ("2041-13", "41-01", "2041"):
        wrong = await api.admin("POST", "/admin/v1/prices/preview", json={**body, "month": month})
        assert wrong.json()["error"]["param"] == "month"
