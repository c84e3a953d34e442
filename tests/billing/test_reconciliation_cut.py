"""Whoever cuts off the end of a tenant's ledger and mends the balances leaves a chain that holds;
the reconciliation with usage, invoices and credit misses what was posted: each kind of posting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from api_harness import Api
from books import Table, by_hand, record, store
from platform_fixtures import plain_url
from tenora_platform.bootstrap import database_urls
from tenora_platform.budgets.grants import Grant, grant_credit
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.credits import apply_credits
from tenora_platform.ledger.poster import Poster
from tenora_platform.reconciliation.differences import Difference
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.task import Task
from verification import problems_of

NOW = datetime.now(UTC)
NOON = NOW.replace(hour=12, minute=0, second=0, microsecond=0)
LAST_MONTH = NOON.replace(day=1) - timedelta(days=1)
TABLES = ("ledger_transactions", "ledger_entries", "ledger_balances")
LAST = "(SELECT id FROM ledger_transactions WHERE tenant_id = %(of)s ORDER BY seq DESC LIMIT 1)"
CUT = (
    f"CREATE TEMP TABLE cut AS SELECT * FROM ledger_entries WHERE transaction_id = {LAST}",
    f"DELETE FROM ledger_transactions WHERE id = {LAST}",
    "DELETE FROM ledger_entries e USING cut WHERE e.transaction_id = cut.transaction_id",
    "UPDATE ledger_balances b SET balance = balance - cut.amount, entries = entries - 1 FROM cut"
    " WHERE b.account_id = cut.account_id",
    "DELETE FROM ledger_balances WHERE entries = 0",
    "DROP TABLE cut",
)
KINDS = {
    "usage": {"ledger_wrong"},
    "invoice": {"invoice_not_posted"},
    "payment": {"invoice_changed"},
    "credit_note": {"invoice_not_posted"},
    "void": {"invoice_not_posted"},
    "grant": {"ledger_wrong"},
    "grant of the log": {"ledger_wrong"},
    "credit": {"ledger_wrong"},
    "lapse": {"ledger_wrong"},
    "credit of an invoice": {"ledger_wrong"},
}
"""By the last posting of a tenant, what is found."""


@dataclass
class Cut:
    """Books of one tenant for each kind, whose chain ends with it."""

    api: Api
    link: psycopg.Connection[tuple[Any, ...]]
    task: Task
    tenants: dict[str, str]

    async def found(self) -> list[Difference]:
        return (await asyncio.to_thread(prove, self.task)).named

    async def verified(self) -> list[str]:
        return await problems_of(self.api.state)

    @contextmanager
    def cut(self, kind: str) -> Iterator[str]:
        """The kind of what was cut off."""
        tables = [Table(self.link, name) for name in TABLES]
        of = {"of": self.tenants[kind]}
        for each in tables:
            each.keep()
        try:
            last = self.link.execute(
                f"SELECT kind FROM ledger_transactions WHERE id = {LAST}".encode(), of
            ).fetchone()
            for statement in CUT:
                self.link.execute(statement.encode(), of)
            assert last is not None
            yield str(last[0])
        finally:
            for each in tables:
                each.restore()


async def invoice(api: Api, tenants: dict[str, str]) -> None:
    for kind in ("invoice", "payment", "credit_note", "void", "credit of an invoice"):
        body = {"period": f"{LAST_MONTH:%Y-%m}", "draft": False, "tenant": tenants[kind]}
        run = await api.admin("POST", "/admin/v1/invoices/run", json=body)
        assert run.status_code < 300, run.text
    each: dict[str, dict[str, Any]] = {
        "payment": {"amount": "0.01", "reference": "bank-1"},
        "credit_note": {"lines": [{"no": 1, "amount": "0.01"}], "reason": "a gift"},
        "void": {"reason": "the wrong one"},
    }
    paths = {"payment": "payments", "credit_note": "credit_notes", "void": "void"}
    shown = (await api.admin("GET", "/admin/v1/invoices")).json()["data"]
    for kind, body in each.items():
        (mine,) = [bill["id"] for bill in shown if bill["tenant_id"] == tenants[kind]]
        done = await api.admin("POST", f"/admin/v1/invoices/{mine}/{paths[kind]}", json=body)
        assert done.status_code < 300, done.text


async def give(api: Api, tenant_id: str, at: datetime, expires_at: datetime | None) -> None:
    async with api.state.db.admin_session() as session:
        grant = Grant(amount=Decimal(5), kind="bought", expires_at=expires_at)
        row = await grant_credit(session, api.state.ledger, tenant_id, grant, now=at)
        await api.state.audit.append(
            session, actor="test", action="credit.grant", target=row.id, tenant_id=tenant_id
        )


@pytest.fixture(scope="module")
async def books(api: Api, database_url: str) -> AsyncIterator[Cut]:
    tenants = {kind: (await api.new_tenant(f"cut {kind}")).id for kind in KINDS}
    before = LAST_MONTH - timedelta(days=2)
    for kind in ("credit", "lapse", "credit of an invoice"):
        ends = {"lapse": before + timedelta(days=1), "credit": before + timedelta(days=3)}
        await give(api, tenants[kind], before, ends.get(kind))
    # All of its credit is used up, so that nothing lapses.
    tokens = {"credit": 10**9}
    records = [
        record(tenant_id, LAST_MONTH.timestamp(), prompt_tokens=tokens.get(kind, 10**6))
        for kind, tenant_id in tenants.items()
        if kind not in ("grant", "grant of the log", "lapse")
    ]
    await store(api, records)
    await Poster(api.state.db, api.state.ledger).run_once()
    await invoice(api, tenants)
    for kind in ("lapse", "credit"):
        async with api.state.db.admin_session() as session:
            begin = datetime.min.replace(tzinfo=UTC)
            await apply_credits(session, api.state.ledger, tenants[kind], begin, NOW)
    await give(api, tenants["grant"], NOW, None)
    path = f"/admin/v1/tenants/{tenants['grant of the log']}/credits"
    expires_at = (NOW + timedelta(days=9)).isoformat()
    made = await api.admin("POST", path, json={"amount": "5", "expires_at": expires_at})
    assert made.status_code == 201, made.text
    urls = database_urls(database_url, api.state.secret, DEFAULT)
    task = Task(
        database_url=urls.admin.set(drivername="postgresql").render_as_string(hide_password=False),
        secret=api.state.secret.root,
        object_store=api.state.settings.object_store_url,
    )
    with by_hand(plain_url(database_url)) as link:
        books = Cut(api, link, task, tenants)
        assert await books.found() == [], "before anything is cut off"
        yield books


@pytest.mark.parametrize("kind", KINDS)
async def test_the_end_of_a_chain_is_missed(books: Cut, kind: str) -> None:
    with books.cut(kind) as posted:
        wanted = {
            "void": "invoice",
            "grant of the log": "grant",
            "credit of an invoice": "credit",
        }.get(kind, kind)
        assert posted == wanted, "or it is another test"
        assert await books.verified() == [], "the chain and its balances hold"
        found = await books.found()
    assert {each.kind for each in found} == KINDS[kind]
    assert {each.tenant_id for each in found} == {books.tenants[kind]}
    assert await books.found() == []


async def test_credit_that_is_gone_with_its_posting_is_missed(books: Cut) -> None:
    """The audit log has it."""
    tenant_id = books.tenants["grant of the log"]
    grants = Table(books.link, "credit_grants")
    grants.keep()
    try:
        with books.cut("grant of the log") as posted:
            assert posted == "grant"
            books.link.execute("DELETE FROM credit_grants WHERE tenant_id = %s", [tenant_id])
            assert await books.verified() == []
            found = await books.found()
        (posting,) = (each for each in found if each.kind == "ledger_wrong")
        assert posting.tenant_id == tenant_id
        assert {each.kind for each in found} == {"ledger_wrong", "account_changed"}
        for change in ("amount = 4", "currency = 'EUR'", "kind = 'bought'", "expires_at = now()"):
            of = f"UPDATE credit_grants SET {change} WHERE tenant_id = %s"
            books.link.execute(of.encode(), [tenant_id])
            named = [each.tenant_id for each in await books.found() if each.kind == "ledger_wrong"]
            assert set(named) == {tenant_id}, change
            grants.restore()
    finally:
        grants.restore()
