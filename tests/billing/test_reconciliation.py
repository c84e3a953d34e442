"""The books are compared layer by layer, and agree: whatever was stored, rated late, set aside or
posted. `test_reconciliation_tampering` changes them by hand."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta

import pytest

from api_harness import Api, TestTenant
from books import reconcile, record, store
from tenora_platform.ledger.poster import Poster

_DAY_S = 86_400


@pytest.fixture(scope="module")
async def tenants(api: Api) -> list[TestTenant]:
    return [await api.new_tenant(f"books-{number}") for number in range(3)]


def noon(days_ago: int) -> float:
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return (today - timedelta(days=days_ago)).timestamp()


async def test_books_that_were_kept_as_they_should_agree(
    api: Api, tenants: list[TestTenant]
) -> None:
    for days_ago, hour in itertools.product((40, 9, 1, 0), range(3)):
        await store(
            api,
            [
                record(tenant.id, noon(days_ago) + hour * 3600 + sequence, sequence)
                for tenant in tenants
                for sequence in range(2)
            ],
        )
    await Poster(api.state.db, api.state.ledger).run_once()
    run = await reconcile(api)
    assert run["differences"] == {}, run["named"]
    assert run["agrees"] is True
    looked = run["looked"]
    assert looked["events"] == 72
    assert looked["days"] == 12
    assert looked["ledger_amounts"] == 36
    shown = (await api.admin("GET", "/admin/v1/reconciliation")).json()
    assert shown["agrees"] is True
    assert shown["last_run"]["id"] == run["id"]
    mine = await reconcile(api, tenant=tenants[0].id, first=str(day(9)), last=str(day(1)))
    assert mine["agrees"] is True
    assert mine["looked"]["events"] == 12


def day(days_ago: int) -> date:
    return datetime.fromtimestamp(noon(days_ago), UTC).date()


async def test_days_that_were_found_right_are_not_looked_at_again(
    api: Api, tenants: list[TestTenant]
) -> None:
    run = await reconcile(api, mode="recent")
    assert run["agrees"] is True
    assert run["looked"]["events"] == 36  # today and yesterday
    assert run["looked"]["days"] == 6
    assert run["looked"]["ledger_amounts"] == 18
    await store(api, [record(tenants[1].id, noon(40) + 5 * 3600)])
    other = await reconcile(api, mode="recent", tenant=tenants[0].id)
    assert other["looked"]["events"] == 12
    run = await reconcile(api, mode="recent")
    assert run["agrees"] is True, run["named"]
    assert run["looked"]["events"] == 36 + 7
    run = await reconcile(api, mode="recent")
    assert run["looked"]["events"] == 36


async def test_what_waits_for_a_price_agrees_too(api: Api, tenants: list[TestTenant]) -> None:
    context = {"tenant_id": tenants[0].id, "model": "unpriced", "plan": "standard"}
    early = datetime(2010, 1, 1, tzinfo=UTC).timestamp()
    await store(api, [record(tenants[0].id, early, context=context)])
    run = await reconcile(api)
    assert run["differences"] == {}, run["named"]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"tenant": "tenant_nobody"}, 404, "tenant"),
        ({"first": "2026-02-02", "last": "2026-02-01"}, 400, "first"),
        ({"mode": "other"}, 400, "mode"),
        ({"first": "1999-01-01"}, 400, "first"),
    ],
)
async def test_what_cannot_be_asked_for(
    api: Api, body: dict[str, str], status: int, param: str
) -> None:
    answer = await api.admin("POST", "/admin/v1/reconciliation/runs", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param
