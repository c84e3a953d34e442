"""Price versions over HTTP: dates within bounds, none that begins where usage has been rated, and
withdrawn only while it has rated nothing. However a date was stored, billing goes on."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

import usage_records
from api_harness import Api, TestTenant
from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.installation import DEFAULT
from tenora_platform.usage.books import UsageBooks
from tenora_platform.usage.sink import UsageSink
from usage_records import usage_record

TICK = timedelta(microseconds=1)
PRICES = {"uncached_prefill": "10", "cached_prefill": "10", "output": "10"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
async def payer(api: Api) -> TestTenant:
    return await api.new_tenant("payer")


def body(model: str, effective_from: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": model, "effective_from": effective_from, "per_million": PRICES, **more}


async def post(api: Api, model: str, effective_from: str | None = None, **more: Any) -> Any:
    return await api.admin("POST", "/admin/v1/prices", json=body(model, effective_from, **more))


async def use(api: Api, payer: TestTenant, model: str, at: datetime) -> str:
    """An event of this model at this time, stored; returns its id."""
    event_id = f"priced{next(_numbers)}:0"
    context = {"tenant_id": payer.id, "model": model, "plan": "standard"}
    record = usage_record(event_id, payer.id, context=context, finished_s=at.timestamp())
    await UsageSink(api.engine, api.state.db).store([record])
    return event_id


async def price_of(api: Api, event_id: str) -> str | None:
    """The version by which the event was rated."""
    async with api.state.db.admin_session() as session:
        return await usage_records.price_of(session, event_id)


@pytest.mark.parametrize(
    "effective_from",
    [
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+14:00",
        "2200-01-01T00:00:00Z",
        "2199-12-31T23:59:59.999999-00:01",
        "1999-12-31T23:59:59.999999Z",
        "2030-01-01T00:00:00",
        1e300,
    ],
)
async def test_dates_are_bounded(api: Api, payer: TestTenant, effective_from: Any) -> None:
    answer = await post(api, "fake-base", effective_from)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "effective_from"
    event = await use(api, payer, "fake-base", datetime(2026, 5, 1, tzinfo=UTC))
    assert await price_of(api, event) == "price_default"


async def test_the_last_date_of_all(api: Api, payer: TestTenant) -> None:
    made = await post(api, "eternal", "2200-01-01T13:59:59.999999+14:00")
    assert made.status_code == 201, made.text
    assert made.json()["effective_from"] == "2199-12-31T23:59:59.999999Z"
    assert (await api.admin("GET", "/admin/v1/prices")).status_code == 200
    event = await use(api, payer, "eternal", datetime(2031, 1, 1, tzinfo=UTC))
    assert await price_of(api, event) == "price_default"


@pytest.mark.parametrize("model", ["", "a\0b", "a\nb", "a" * 257])
async def test_a_scope_is_a_name(api: Api, model: str) -> None:
    answer = await post(api, model)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "model"


async def test_a_price_may_not_begin_where_usage_was_rated(api: Api, payer: TestTenant) -> None:
    """Else a bill would hang on whether the price or the usage came first."""
    first, last = datetime(2031, 3, 1, tzinfo=UTC), datetime(2031, 3, 2, 7, 30, tzinfo=UTC)
    for at in (first, last):
        await use(api, payer, "rated", at)
    for begin in (first - timedelta(days=1), first, first + timedelta(hours=1), last):
        answer = await post(api, "rated", begin.isoformat())
        assert answer.status_code == 409, answer.text
        error = answer.json()["error"]
        assert error["code"] == "price_in_rated_period"
        assert error["param"] == "effective_from"
        assert set(error) >= {"message", "type", "param", "code"}
        earliest = error["earliest_effective_from"]
        assert datetime.fromisoformat(earliest) == last + TICK
        assert earliest in error["message"]
    # Nor a general one: it would have held as well as the default did.
    anywhere = await api.admin(
        "POST",
        "/admin/v1/prices",
        json={"effective_from": first.isoformat(), "per_million": PRICES},
    )
    assert anywhere.status_code == 409
    # What holds elsewhere is not in the way.
    assert (await post(api, "rated-not", first.isoformat())).status_code == 201
    assert (await post(api, "rated", first.isoformat(), plan="other")).status_code == 201
    made = await post(api, "rated", earliest)
    assert made.status_code == 201, made.text
    late = await use(api, payer, "rated", last - TICK)
    assert await price_of(api, late) == "price_default"  # as if it had come in time
    assert await price_of(api, await use(api, payer, "rated", last + TICK)) == made.json()["id"]


async def test_a_price_from_now_on_follows_what_was_rated(api: Api, payer: TestTenant) -> None:
    """An engine whose clock is ahead does not keep a price from being set."""
    ahead = datetime.now(UTC) + timedelta(seconds=20)
    await use(api, payer, "ahead", ahead)
    made = await post(api, "ahead")
    assert made.status_code == 201, made.text
    assert datetime.fromisoformat(made.json()["effective_from"]) == ahead + TICK


async def test_a_price_waits_for_whoever_rates(api: Api, payer: TestTenant) -> None:
    """The sink of another process is in the middle of its transaction while a price is posted."""
    at = datetime(2031, 6, 1, tzinfo=UTC)
    context = {"tenant_id": payer.id, "model": "raced", "plan": "standard"}
    event_id = f"raced{next(_numbers)}:0"
    record = usage_record(event_id, payer.id, context=context, finished_s=at.timestamp())
    books = UsageBooks(api.state.db)
    events, _ = await books._sorted_out([record])
    async with api.state.db.admin_session() as session:
        await books._write(session, events)  # rated, and not committed
        posted = asyncio.create_task(post(api, "raced", (at - timedelta(days=1)).isoformat()))
        done, _ = await asyncio.wait([posted], timeout=0.3)
        assert not done, "the price did not wait"
    answer = await posted
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]["code"] == "price_in_rated_period"


async def test_a_price_can_be_withdrawn_until_it_has_rated(api: Api, payer: TestTenant) -> None:
    begin = datetime(2031, 9, 1, tzinfo=UTC)
    kept = (await post(api, "taken-back", "2031-01-01T00:00:00Z")).json()
    wrong = (await post(api, "taken-back", begin.isoformat())).json()
    after = (await post(api, "taken-back", "2031-10-01T00:00:00Z")).json()
    gone = await api.admin("DELETE", f"/admin/v1/prices/{wrong['id']}")
    assert gone.status_code == 200, gone.text
    assert gone.json() == {"id": wrong["id"], "object": "price_version", "deleted": True}
    listed = {row["id"]: row for row in (await api.admin("GET", "/admin/v1/prices")).json()["data"]}
    assert wrong["id"] not in listed
    assert listed[kept["id"]]["effective_to"] == after["effective_from"]
    event = await use(api, payer, "taken-back", begin)
    assert await price_of(api, event) == kept["id"]
    for path, status, code in (
        (wrong["id"], 404, "not_found"),
        ("price_nonesuch", 404, "not_found"),
        (kept["id"], 409, "price_in_use"),
        ("price_default", 409, "price_in_use"),
    ):
        answer = await api.admin("DELETE", f"/admin/v1/prices/{path}")
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["code"] == code
    entries = (await api.admin("GET", "/admin/v1/audit_logs?action=price_version.withdraw")).json()
    assert entries["data"][0]["target"] == wrong["id"]
    again = await post(api, "taken-back", "2031-09-15T00:00:00Z")
    assert again.status_code == 201  # its beginning is free, and later than what was rated


async def test_a_withdrawn_beginning_is_free_again(api: Api) -> None:
    first = (await post(api, "twice", "2031-09-01T00:00:00Z")).json()
    await api.admin("DELETE", f"/admin/v1/prices/{first['id']}")
    assert (await post(api, "twice", "2031-09-01T00:00:00Z")).status_code == 201


def test_stored_extremes_are_mended(servers: Servers) -> None:
    """A database from before there were bounds, with the dates, keys and plans that stopped it."""
    url = with_database(servers.postgres_url, "extremes")
    servers.execute("CREATE DATABASE {}", "extremes")
    prepare_database(database_urls(url, servers.secret, DEFAULT), "0005")
    with psycopg.connect(plain_url(url), autocommit=True) as owner:
        owner.execute(
            """
            UPDATE price_versions SET effective_to = '10000-01-01 23:58:59+00';
            INSERT INTO price_versions (id, plan, currency, effective_from, effective_to) VALUES
              ('far', NULL, 'USD', '10000-01-01 23:58:59+00', NULL),
              ('never', 'free', 'USD', '0001-12-31 10:00:00+00 BC', '1980-01-01'),
              ('early', 'free', 'USD', '1980-01-01', '2030-01-01'),
              ('later', 'free', 'USD', '2030-01-01', NULL),
              ('endless', 'free', 'USD', 'infinity', NULL);
            INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free');
            INSERT INTO api_keys (id, tenant_id, name, prefix, hash, scopes, expires_at) VALUES
              ('k', 't', 'k', 'p', 'h', '{}', '10000-01-01 23:58:59+00'),
              ('none', 't', 'k', 'p2', 'h', '{}', NULL);
            UPDATE plans SET weight = 1e-308, ttft_ms = 'Infinity' WHERE name = 'free';
            UPDATE plans SET weight = 'NaN' WHERE name = 'premium';
            """
        )
        prepare_database(database_urls(url, servers.secret, DEFAULT))
        rows = owner.execute(
            "SELECT id, effective_from, effective_to FROM price_versions "
            "WHERE withdrawn_at IS NULL ORDER BY id"
        ).fetchall()
        y2k, y2030 = (datetime(year, 1, 1, tzinfo=UTC) for year in (2000, 2030))
        found = {name: (begin, end) for name, begin, end in rows}
        assert found["early"] == (y2k, y2030)
        assert found["later"] == (y2030, None)
        assert found["price_default"] == (datetime(2020, 1, 1, tzinfo=UTC), None)
        assert set(found) == {"early", "later", "price_default"}
        keys = owner.execute("SELECT id, expires_at FROM api_keys ORDER BY id").fetchall()
        assert keys == [("k", datetime(2199, 12, 31, 23, 59, 59, tzinfo=UTC)), ("none", None)]
        plans = owner.execute(
            "SELECT name, weight, ttft_ms, memory_share FROM plans ORDER BY name"
        ).fetchall()
        assert plans == [
            ("free", 0.01, 86_400_000.0, None),
            ("premium", 100.0, 500.0, None),
            ("standard", 1.0, 2000.0, None),
        ]
