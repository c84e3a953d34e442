"""Taking a posting back by hand: a payment that was none, and nothing that follows from something
else."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from api_harness import ADMIN_KEY, Api, TestTenant
from books import reconcile, record, store
from tenora_platform.invoices.period import before, midnight, month_of, name_of
from tenora_platform.ledger.verify import problems

LAST = before(month_of(datetime.now(UTC)))
LAST_S = midnight(LAST).timestamp() + 3600.0


async def make(api: Api, tenant: TestTenant) -> dict[str, Any]:
    """The invoice of last month, final."""
    body = {"tenant": tenant.id, "period": name_of(LAST), "draft": False}
    report = (await api.admin("POST", "/admin/v1/invoices/run", json=body)).json()
    found: dict[str, Any] = report["invoices"][0]
    return found


async def get(api: Api, key: str, path: str, **query: Any) -> Any:
    answer = await api.call(key, "GET", path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_payment_that_was_none_is_reversed(api: Api) -> None:
    """Once, with a reason that the audit log keeps; the invoice is open again, and the books
    agree."""
    tenant = await api.new_tenant("chargeback")
    await store(api, [record(tenant.id, LAST_S, output_tokens=10**8)])
    made = await make(api, tenant)
    base = f"/admin/v1/invoices/{made['id']}"
    paid = {"amount": made["total"], "reference": "pi_9"}
    assert (await api.admin("POST", f"{base}/payments", json=paid)).status_code == 201
    (posted,) = (await get(api, tenant.key, "/v1/ledger", kind="payment"))["data"]
    path = f"/admin/v1/ledger/transactions/{posted['id']}/reverse"
    assert (await api.admin("POST", path, json={})).json()["error"]["param"] == "reason"
    answers = await asyncio.gather(
        *(api.admin("POST", path, json={"reason": "charged back"}) for _ in range(4))
    )
    assert [each.status_code for each in answers] == [200] * 4
    reversal = answers[0].json()
    assert all(each.json() == reversal for each in answers)
    assert (reversal["reverses"], reversal["note"]) == (posted["id"], "charged back")
    opposite = {"cash": f"-{made['total']}0000000000", "receivable": f"{made['total']}0000000000"}
    assert {each["account"]: each["amount"] for each in reversal["entries"]} == opposite
    log = await get(api, ADMIN_KEY, "/admin/v1/audit_logs", tenant_id=tenant.id)
    (entry,) = [each for each in log["data"] if each["action"] == "ledger.reverse"]
    assert entry["target"] == posted["id"]
    whole = await get(api, ADMIN_KEY, base)
    assert (whole["amount_paid"], whole["amount_due"]) == ("0.00", made["total"])
    assert whole["payments"][0]["reversed_at"] is not None
    again = await api.admin("POST", f"{base}/payments", json=paid)
    assert again.json()["error"]["code"] == "payment_noted_otherwise"
    void = await api.admin("POST", f"{base}/void", json={"reason": "nobody pays"})
    assert void.status_code == 200, void.text
    async with api.state.db.admin_session() as session:
        chain = api.state.ledger.chain
        assert [each async for each in problems(session, chain, tenant.id)] == []
    run = await reconcile(api, tenant=tenant.id)
    assert (run["agrees"], run["differences"]) == (True, {}), run["named"]


async def test_what_is_not_reversed_by_hand(api: Api) -> None:
    """What would be posted again, and what has a way of its own."""
    tenant = await api.new_tenant("derived")
    grant = {"amount": "1", "expires_at": f"{datetime.now(UTC) + timedelta(seconds=1):%FT%T.%fZ}"}
    await api.admin("POST", f"/admin/v1/tenants/{tenant.id}/credits", json=grant)
    await store(api, [record(tenant.id, LAST_S, output_tokens=10**8)])
    await make(api, tenant)
    transactions = (await get(api, tenant.key, "/v1/ledger", limit=100))["data"]
    assert {each["kind"] for each in transactions} >= {"usage", "grant", "invoice"}
    for each in transactions:
        path = f"/admin/v1/ledger/transactions/{each['id']}/reverse"
        answer = await api.admin("POST", path, json={"reason": "no"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_reversible")
    missing = "/admin/v1/ledger/transactions/txn_none/reverse"
    assert (await api.admin("POST", missing, json={"reason": "no"})).status_code == 404
