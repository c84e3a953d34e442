"""The ledger over HTTP: pages, filters, and nobody else's books."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

from api_harness import Api, TestTenant
from ledger_books import NOW
from tenora_platform.ledger.service import Entry

FIRST = date(2026, 10, 1)


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    """Seven days of usage and a payment."""
    made = await api.new_tenant("booked")
    for number in range(8):
        kind, accounts = "usage", ("unbilled", "revenue:output")
        if number == 7:
            kind, accounts = "payment", ("cash", "receivable")
        async with api.state.db.admin_session() as session:
            await api.state.ledger.post(
                session,
                made.id,
                kind=kind,
                reference=str(number),
                currency="USD",
                day=FIRST + timedelta(days=number),
                entries=[
                    Entry(name, Decimal(sign)) for name, sign in zip(accounts, (1, -1), strict=True)
                ],
                created_at=NOW,
            )
    return made


async def seqs(api: Api, key: str, path: str) -> list[int]:
    """Through every page."""
    found: list[int] = []
    after = ""
    while True:
        page = (await api.call(key, "GET", f"{path}&limit=3{after}")).json()
        found += [each["seq"] for each in page["data"]]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


async def test_a_tenant_reads_its_books(api: Api, tenant: TestTenant) -> None:
    assert await seqs(api, tenant.key, "/v1/ledger?") == list(range(8, 0, -1))
    assert await seqs(api, tenant.key, "/v1/ledger?kind=payment") == [8]
    days = "start=2026-10-02&end=2026-10-04"
    assert await seqs(api, tenant.key, f"/v1/ledger?{days}") == [3, 2]
    (last,) = (await api.call(tenant.key, "GET", "/v1/ledger?limit=1")).json()["data"]
    assert (last["kind"], last["day"], last["currency"]) == ("payment", "2026-10-08", "USD")
    assert last["entries"] == [
        {"account": "cash", "amount": "1.000000000000"},
        {"account": "receivable", "amount": "-1.000000000000"},
    ]
    answer = await api.call(tenant.key, "GET", "/v1/ledger?start=yesterday")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "start")


async def test_nobody_elses(api: Api, tenant: TestTenant) -> None:
    other = await api.new_tenant("other")
    mine = (await api.call(tenant.key, "GET", "/v1/ledger?limit=1")).json()["last_id"]
    for query in ("", f"?after={mine}"):
        page = (await api.call(other.key, "GET", f"/v1/ledger{query}")).json()
        assert (page["data"], page["has_more"]) == ([], False)
    narrow = await api.new_tenant("narrow", scopes=["inference"])
    answer = await api.call(narrow.key, "GET", "/v1/ledger")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")


async def test_the_operator_reads_anybodys(api: Api, tenant: TestTenant) -> None:
    path = f"/admin/v1/tenants/{tenant.id}"
    page = (await api.admin("GET", f"{path}/ledger?kind=payment")).json()
    assert [each["seq"] for each in page["data"]] == [8]
    shown = (await api.admin("GET", f"{path}/balances")).json()
    assert {each["account"]: (each["nature"], each["balance"]) for each in shown["data"]} == {
        "cash": ("asset", "1.000000000000"),
        "receivable": ("asset", "-1.000000000000"),
        "revenue:output": ("income", "-7.000000000000"),
        "unbilled": ("asset", "7.000000000000"),
    }
    assert shown["days_due"] == []
    for what in ("ledger", "balances"):
        assert (await api.admin("GET", f"/admin/v1/tenants/nobody/{what}")).status_code == 404
