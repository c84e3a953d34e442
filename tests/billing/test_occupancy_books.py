"""What adapters take of memory and of the object store, on the books: each record and each day
exactly once, priced and summed; what cannot be booked is set aside and stops no other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from adapter_files import adapter_form
from api_harness import Api, TestTenant
from tenora_engine.events import OccupancyRecord
from tenora_engine.ulid import new_id
from tenora_platform.budgets.accounts import Charge
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.usage.leftovers import Leftovers
from tenora_platform.usage.occupancy import rate_waiting_occupancy
from tenora_platform.usage.residency import ResidencyBooks
from tenora_platform.usage.sink import UsageSink
from tenora_platform.usage.storage import StorageDays, kb_hours

HOUR_S = 3600.0
MIDNIGHT = datetime(2026, 6, 2, tzinfo=UTC)
_numbers = itertools.count()


@pytest.fixture
async def tenant(api: Api) -> TestTenant:
    return await api.new_tenant("holder", plan="premium")


async def price(api: Api, model: str | None, *, scope: Any = None, **per_million: str) -> None:
    body = {
        "model": model,
        **(scope or {}),
        "effective_from": "2026-01-01T00:00:00Z",
        "per_million": {
            "uncached_prefill": "1",
            "cached_prefill": "1",
            "output": "1",
            **per_million,
        },
    }
    made = await api.admin("POST", "/admin/v1/prices", json=body)
    assert made.status_code == 201, made.text


def record(tenant: str, kb_s: int, tier: Any = "device", **changes: Any) -> OccupancyRecord:
    values = {
        "event_id": new_id("occ"),
        "tenant": tenant,
        "adapter_digest": "sha256:ab",
        "tier": tier,
        "kb_s": kb_s,
        "begins_s": MIDNIGHT.timestamp() - HOUR_S,
        "ends_s": MIDNIGHT.timestamp(),
    }
    return OccupancyRecord(**(values | changes))


async def days(api: Api, tenant: str) -> list[tuple[str, str, int, str]]:
    """(day, meter, quantity, amount) of what is priced."""
    query = text(
        "select day, meter, sum(quantity), sum(amount) from usage_day_meters "
        "where tenant_id = :tenant and meter in ('device_residency', 'host_residency', "
        "'stored') group by 1, 2 order by 1, 2"
    )
    async with api.state.db.admin_session() as session:
        rows = await session.execute(query, {"tenant": tenant})
        return [(day.isoformat(), meter, int(q), f"{amount:.6f}") for day, meter, q, amount in rows]


async def test_residency_is_booked_once_and_priced(api: Api, tenant: TestTenant) -> None:
    model = f"held-{next(_numbers)}"
    await price(api, model, device_residency="2", host_residency="0.5")
    books = ResidencyBooks(api.state.db)
    found = [record(tenant.id, 1_500_000), record(tenant.id, 4_000_000, "host")]
    charges = await books.store(found, model)
    assert sorted(charge.nanos for charge in charges) == [2 * 10**9, 3 * 10**9]
    assert await books.store(found, model) == []
    assert await ResidencyBooks(api.state.db).store(found, model) == []
    assert await days(api, tenant.id) == [  # what ended at midnight is of the day before
        ("2026-06-01", "device_residency", 1_500_000, "3.000000"),
        ("2026-06-01", "host_residency", 4_000_000, "2.000000"),
    ]


async def test_hours_that_are_cut_count_what_ended_in_their_part(
    api: Api, tenant: TestTenant
) -> None:
    """Windows that meet within an hour have it once, by every grouping."""
    model = f"held-{next(_numbers)}"
    await price(api, model, device_residency="2")
    ends = [MIDNIGHT - timedelta(minutes=minutes) for minutes in (20, 40, 100)]
    found = [
        record(tenant.id, 10**number, begins_s=end.timestamp() - 60, ends_s=end.timestamp())
        for number, end in enumerate(ends)
    ]
    await ResidencyBooks(api.state.db).store(found, model)

    async def costs(minutes: int, until: int, bucket: str) -> Decimal:
        window = {
            "start": (MIDNIGHT - timedelta(minutes=minutes)).isoformat(),
            "end": (MIDNIGHT - timedelta(minutes=until)).isoformat(),
            "bucket": bucket,
            "group_by": "adapter,tier",
        }
        answer = await api.call(tenant.key, "GET", "/v1/costs", params=window)
        assert answer.status_code == 200, answer.text
        results = [each for day in answer.json()["data"] for each in day["results"]]
        return sum((Decimal(each["amount"]) for each in results), Decimal(0))

    for bucket in ("1h", "1d"):
        parts = [await costs(*span, bucket) for span in ((130, 90), (90, 30), (30, 0), (130, 0))]
        assert [part * 10**6 / 2 for part in parts] == [100, 10, 1, 111]


async def test_a_record_that_cannot_be_booked_stops_no_other(api: Api, tenant: TestTenant) -> None:
    """Through the sink, which acknowledges all of them."""
    good = record(tenant.id, 7)
    nobodys = record("tenant_nobody", 7)
    strange = record(tenant.id, 7, begins_s=1e300)
    api.engine.outbox += [nobodys, strange, good]  # type: ignore[list-item]
    await UsageSink(api.engine, api.state.db).run_once()
    assert not {good, nobodys, strange} & set(api.engine.outbox)
    assert [row[:3] for row in await days(api, tenant.id)] == [
        ("2026-06-01", "device_residency", 7)
    ]
    query = text("select event_id from usage_dead_letters where event_id like 'occ_%'")
    async with api.state.db.admin_session() as session:
        letters = set(await session.scalars(query))
    assert {nobodys.event_id, strange.event_id} <= letters


async def test_what_was_set_aside_is_booked_once_it_can_be(api: Api) -> None:
    """Its tenant is there again: it is tried by itself, told to budgets, and open no more."""
    lost = new_id("tenant")
    found = record(lost, 3_000_000)
    api.engine.outbox.append(found)  # type: ignore[arg-type]
    told: list[Charge] = []

    async def tell(charges: Sequence[Charge]) -> None:
        told.extend(charges)

    sink = UsageSink(api.engine, api.state.db, told=tell)
    await sink.run_once()
    leftovers = Leftovers(api.state.db, sink, api.state.unbilled)

    async def is_open() -> bool:
        shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
        return found.event_id in {each["event_id"] for each in shown["newest_dead_letters"]}

    await leftovers.run_once()
    assert await is_open()
    async with api.state.db.admin_session() as session:
        restore = "insert into tenants (id, name, plan) values (:id, 'back', 'free')"
        await session.execute(text(restore), {"id": lost})
    for _ in range(2):
        await leftovers.run_once()
        assert not await is_open()
    assert [row[:3] for row in await days(api, lost)] == [
        ("2026-06-01", "device_residency", 3_000_000)
    ]
    assert [charge.tenant_id for charge in told] == [lost]


async def test_what_has_no_price_waits_for_it(api: Api, tenant: TestTenant) -> None:
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update price_versions set withdrawn_at = now() where id = 'price_default'")
        )
    model = f"unpriced-{next(_numbers)}"
    assert await ResidencyBooks(api.state.db).store([record(tenant.id, 3_000_000)], model) == []
    assert await rate_waiting_occupancy(api.state.db) == 0
    assert [row[2:] for row in await days(api, tenant.id)] == [(3_000_000, "0.000000")]
    await price(api, model, device_residency="4")  # it is rated at once
    assert await rate_waiting_occupancy(api.state.db) == 0
    assert [row[2:] for row in await days(api, tenant.id)] == [(3_000_000, "12.000000")]
    async with api.state.db.admin_session() as session:
        await session.execute(
            text("update price_versions set withdrawn_at = null where id = 'price_default'")
        )


async def pushed(api: Api, tenant: TestTenant, name: str) -> str:
    files = adapter_form(api.engine.model, name, seed=next(_numbers))
    made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
    assert made.status_code == 202, made.text
    path = f"/v1/adapters/{name}/versions/1"
    while (await api.call(tenant.key, "GET", path)).json()["state"] != "active":
        await IntakeWorker(api.state).run_once()
    return str(made.json()["id"])


async def test_storage_is_booked_by_the_day_from_the_history(api: Api, tenant: TestTenant) -> None:
    await price(api, None, scope={"tenant": tenant.id}, stored="1")
    version = await pushed(api, tenant, "stored")
    begins = datetime(2026, 6, 1, 6, 30, tzinfo=UTC)
    ends = datetime(2026, 6, 4, 12, 0, 0, 1, tzinfo=UTC)
    async with api.state.db.admin_session() as session:
        row = await session.get_one(AdapterVersionRow, version)
        row.bytes, row.activated_at, row.revoked_at = 7_200_001, begins, ends
    now = datetime(2026, 6, 2, 0, 1, tzinfo=UTC)
    worker = StorageDays(api.state.db, api.engine, clock=lambda: now)
    assert await worker.run_once("fake-base") == 1, "it begins with yesterday"
    assert await worker.run_once("fake-base") == 0
    now = datetime(2026, 6, 8, 3, tzinfo=UTC)
    assert await StorageDays(api.state.db, api.engine, clock=lambda: now).run_once("fake-base") == 3
    await StorageDays(api.state.db, api.engine, clock=lambda: now).run_once("fake-base")
    found = await days(api, tenant.id)
    assert [row[0] for row in found] == ["2026-06-01", "2026-06-02", "2026-06-03", "2026-06-04"]
    seconds = (ends - begins).total_seconds()
    assert sum(row[2] for row in found) == int(7_200_001 * seconds / 3_600_000)
    assert found[1][2] in (172_800, 172_801), "7.2 MB for a day, and what was carried"
    async with api.state.db.admin_session() as session:
        await session.execute(select(AdapterVersionRow).where(AdapterVersionRow.id == version))


async def test_storage_is_one_event_of_a_tenant_and_day(api: Api, tenant: TestTenant) -> None:
    """However many versions there are, at the plan that the tenant had when the day ended; and an
    adapter with prices of its own by itself."""
    versions = [await pushed(api, tenant, name) for name in ("one", "two", "own")]
    begins = datetime(2026, 6, 1, tzinfo=UTC)
    async with api.state.db.admin_session() as session:
        for version in versions:
            row = await session.get_one(AdapterVersionRow, version)
            row.bytes, row.activated_at = 3_600_000, begins
            own = row.adapter_id
        await session.execute(
            text("update tenants set created_at = '2020-01-01' where id = :id"), {"id": tenant.id}
        )
        moved = {"id": tenant.id, "since": begins + timedelta(days=1, hours=5)}
        statement = (
            "insert into tenant_plans (tenant_id, since, plan) "
            "values (:id, '2020-01-01', 'premium'), (:id, :since, 'free')"
        )
        await session.execute(text(statement), moved)
    await price(api, None, scope={"tenant": tenant.id}, stored="1")
    await price(api, None, scope={"adapter": own}, stored="1")
    now = begins + timedelta(days=2, hours=1)
    worker = StorageDays(api.state.db, api.engine, clock=lambda: now)
    worker._done = begins.date() - timedelta(days=1)
    assert await worker.run_once("fake-base") == 4
    again = StorageDays(api.state.db, api.engine, clock=lambda: now)
    again._done = begins.date() - timedelta(days=1)
    assert await again.run_once("fake-base") == 0, "after a crash"
    query = text(
        "select e.ends, s.adapter_id, s.plan, e.quantity from occupancy_events e "
        "join usage_series s on s.id = e.series_id where s.tenant_id = :id"
    )
    async with api.state.db.admin_session() as session:
        found = (await session.execute(query, {"id": tenant.id})).all()
    assert {(ends.date(), adapter, plan): quantity for ends, adapter, plan, quantity in found} == {
        (date(2026, 6, 1), None, "premium"): 2 * 86_400,
        (date(2026, 6, 1), own, "premium"): 86_400,
        (date(2026, 6, 2), None, "free"): 2 * 86_400,
        (date(2026, 6, 2), own, "free"): 86_400,
    }


async def test_storage_that_is_free_is_not_written_down(api: Api, tenant: TestTenant) -> None:
    version = await pushed(api, tenant, "free")
    async with api.state.db.admin_session() as session:
        row = await session.get_one(AdapterVersionRow, version)
        row.bytes, row.activated_at = 10**9, datetime(2026, 6, 1, tzinfo=UTC)
    now = datetime(2026, 6, 3, 1, tzinfo=UTC)
    await StorageDays(api.state.db, api.engine, clock=lambda: now).run_once("fake-base")
    assert await days(api, tenant.id) == []


@given(
    size=st.integers(1, 10**7),
    since_us=st.integers(0, 86_400 * 10**6 - 1),
    length_us=st.integers(1, 5 * 86_400 * 10**6),
)
@settings(max_examples=100)
def test_days_of_storage_add_up(size: int, since_us: int, length_us: int) -> None:
    begins = MIDNIGHT + timedelta(microseconds=since_us)
    version = AdapterVersionRow(
        id="v",
        tenant_id="t",
        adapter_id="a",
        bytes=size,
        activated_at=begins,
        revoked_at=begins + timedelta(microseconds=length_us),
    )
    found = [kb_hours(version, (MIDNIGHT + timedelta(days=day)).date()) for day in range(7)]
    assert sum(found) == size * length_us // (3600 * 1000 * 10**6)
