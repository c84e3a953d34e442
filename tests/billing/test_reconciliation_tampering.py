"""Whoever changes one value of the books by hand, takes a row out or puts one in, as a superuser
whom no trigger stops, is found by the reconciliation or by `tenora audit verify`: each table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import msgspec
import psycopg
import pytest
from psycopg import sql

from api_harness import Api
from books import CHANGES, REFUSED, Table, by_hand, record, store
from platform_fixtures import plain_url
from tenora_engine.events import OccupancyRecord
from tenora_engine.transport.totals import Totals
from tenora_platform.bootstrap import database_urls
from tenora_platform.erasure.worker import Eraser
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import Poster
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.task import Result, Task
from tenora_platform.usage.engine_totals import keep
from tenora_platform.usage.residency import ResidencyBooks
from verification import problems_of

TABLES: dict[LiteralString, set[str]] = {
    "usage_events": set(),
    "occupancy_events": set(),
    "usage_hours": set(),
    "usage_days": set(),
    "usage_series": {"created_at"},
    "usage_volumes": set(),
    "unrated_events": {"no", "reason", "since"},
    "usage_dead_letters": {"reason", "received_at"},
    "price_versions": {"created_at"},
    "prices": set(),
    "ledger_accounts": {"created_at"},
    "ledger_transactions": set(),
    "ledger_entries": set(),
    "ledger_balances": set(),
    "engine_totals": {"engine", "updated_at"},
    "invoices": set(),
    "invoice_lines": set(),
    "invoice_usage": set(),
    "invoice_payments": {"created_at"},
    "invoice_numbers": set(),
    "tenants": {
        *("no", "deleted_at", "erase_after", "erased_at", "status_before"),
        *("created_at", "updated_at", "namespace"),
    },
    "tenant_plans": {"since"},  # by a second: it is another clock's
    "tenant_taxes": {"no", "noted_on"},  # by a day: it is another clock's
    "api_keys": {
        *("prefix", "hash", "lineage", "created_at", "last_used_at", "created_by", "secret_by"),
        *("previous_prefix", "previous_hash", "previous_expires_at", "previous_by"),
    },
    "credit_grants": {"lapsed", "created_at"},
}
"""With what says nothing of money: when a row was made, and words for people."""

NOT_COPIED = {
    # What a second row of it would say is what the first one says.
    "usage_dead_letters",
}
TIERED = {
    "plan": "tiered",
    "effective_from": "2020-02-01T00:00:00Z",
    "per_million": {
        "uncached_prefill": [{"price": "2"}, {"from": 50_000_000, "price": "1"}],
        "cached_prefill": "0.5",
        "output": "3",
    },
}


class Books:
    """Those of one application, and how they are looked through."""

    def __init__(self, api: Api, link: psycopg.Connection[tuple[object, ...]], url: str) -> None:
        self._api = api
        self._task = Task(
            database_url=url,
            secret=api.state.secret.root,
            object_store=api.state.settings.object_store_url,
        )
        self.link = link

    def proved(self) -> Result:
        return prove(self._task)

    async def found(self) -> list[str]:
        """What either of the two names."""
        result = await asyncio.to_thread(self.proved)
        named = [f"{each.kind} {each.subject}" for each in result.named]
        if not named:
            named = await problems_of(self._api.state)
        return named


NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
LAST_MONTH = NOON.replace(day=1) - timedelta(days=1)


async def fill(api: Api) -> None:
    """Every table, as the platform does."""
    await api.put_plan("tiered", {})
    steps = await api.new_tenant("tampered-tiered", "tiered")
    tenants = [await api.new_tenant(f"tampered-{number}") for number in range(2)]
    made = await api.admin("POST", "/admin/v1/prices", json=TIERED)
    assert made.status_code == 201, made.text
    records = []
    for tenant in (steps, *tenants):
        plan = "tiered" if tenant is steps else "standard"
        context = {"tenant_id": tenant.id, "model": "fake-base", "plan": plan}
        for day in (NOON - timedelta(days=3), LAST_MONTH):
            records += [
                record(
                    tenant.id,
                    day.timestamp() + hour * 1800,
                    context=context,
                    prompt_tokens=10**6 * (hour + 40),
                )
                for hour in range(3)
            ]
    early = datetime(2010, 1, 1, tzinfo=UTC).timestamp()
    records += [record(tenant.id, early) for tenant in tenants]
    at = (NOON - timedelta(days=3)).timestamp()
    records += [record("tenant_nobody", at), record(steps.id, at, cached_tokens=10**9)]
    await store(api, records)
    totals = Totals(None)
    totals.add(0, records)
    counted = totals.view("", [])
    async with api.state.db.admin_session() as session:
        await keep(session, msgspec.structs.replace(counted, whole_since="2010-01-01"))
    held = OccupancyRecord(
        event_id=new_id("occ"),
        tenant=steps.id,
        adapter_digest="sha256:ab",
        tier="device",
        kb_s=5_000_000,
        begins_s=at - 3600,
        ends_s=at,
    )
    assert len(await ResidencyBooks(api.state.db).store([held], "fake-base")) <= 1
    credit = {"amount": "0.01", "note": "a gift"}
    made = await api.admin("POST", f"/admin/v1/tenants/{tenants[0].id}/credits", json=credit)
    assert made.status_code == 201, made.text
    for tax in ({"name": "No tax yet"}, {"tax_rate": "19"}, {"name": "Again"}, {"tax_rate": "7"}):
        path = f"/admin/v1/tenants/{tenants[0].id}/billing_profile"
        made = await api.admin("PUT", path, json={"tax_name": "VAT", **tax})
        assert made.status_code == 200, made.text
    key = {"name": "eyes", "role": "read_only"}
    assert (await api.admin("POST", "/admin/v1/admin_keys", json=key)).status_code == 201
    await Poster(api.state.db, api.state.ledger).run_once()
    await invoice(api)


async def invoice(api: Api) -> None:
    """Last month: one paid in part, one credited in part, one void."""
    body = {"period": f"{LAST_MONTH:%Y-%m}", "draft": False}
    run = await api.admin("POST", "/admin/v1/invoices/run", json=body)
    assert run.status_code < 300, run.text
    found = (await api.admin("GET", "/admin/v1/invoices")).json()["data"]
    assert len(found) == 3, found
    for each, path, more in zip(
        found,
        ("payments", "credit_notes", "void"),
        (
            {"amount": "0.50", "reference": "bank-1"},
            {"lines": [{"no": await dearest(api, found[1]), "amount": "0.25"}], "reason": "a gift"},
            {"reason": "the wrong one"},
        ),
        strict=True,
    ):
        done = await api.admin("POST", f"/admin/v1/invoices/{each['id']}/{path}", json=more)
        assert done.status_code < 300, done.text


async def dearest(api: Api, invoice: dict[str, Any]) -> int:
    """The number of its largest line."""
    lines = (await api.admin("GET", f"/admin/v1/invoices/{invoice['id']}")).json()["lines"]
    return int(max(lines, key=lambda line: float(line["amount"]))["no"])


@pytest.fixture(scope="module")
async def books(api: Api, database_url: str) -> AsyncIterator[Books]:
    await fill(api)
    urls = database_urls(database_url, api.state.secret, DEFAULT)
    admin = urls.admin.set(drivername="postgresql").render_as_string(hide_password=False)
    with by_hand(plain_url(database_url)) as link:
        found = Books(api, link, admin)
        assert await found.found() == [], "before anything is changed"
        yield found


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, books: Books) -> Iterator[Table]:
    table = Table(books.link, request.param)
    table.keep()
    yield table
    table.restore()


async def test_a_changed_value_is_found(books: Books, table: Table) -> None:
    missed = []
    for column, kind in table.columns().items():
        if column in TABLES[table.name]:
            continue
        rows = table.some_rows()
        row = rows[len(column) % len(rows)]
        try:
            table.change(row, column, CHANGES[kind])
        except REFUSED:
            continue
        if not await books.found():
            missed.append(f"{column} ({kind}) of row {row}")
        table.restore()
    assert not missed


async def test_a_deleted_row_is_found(books: Books, table: Table) -> None:
    for row in table.some_rows()[-2:]:
        table.delete(row)
        assert await books.found(), f"row {row} of {table.name}"
        table.restore()


async def test_an_added_row_is_found(books: Books, table: Table) -> None:
    if table.name in NOT_COPIED:
        pytest.skip("says nothing that the first one does not say")
    with contextlib.suppress(*REFUSED):
        table.copy(table.some_rows()[0])
        assert await books.found(), f"a second row of {table.name}"


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (
            "UPDATE plans SET budget = 10000 WHERE name = 'tiered'",
            "UPDATE plans SET budget = NULL WHERE name = 'tiered'",
        ),
        (
            "UPDATE admin_keys SET role = 'owner' WHERE role = 'read_only'",
            "UPDATE admin_keys SET role = 'read_only' WHERE role = 'owner'",
        ),
        (
            "UPDATE tenant_plans SET since = since - interval '20 days'",
            "UPDATE tenant_plans SET since = since + interval '20 days'",
        ),
    ],
)
async def test_a_changed_account_is_found(
    books: Books, change: LiteralString, undo: LiteralString
) -> None:
    """Of tables of which not every row or value is the audit log's."""
    assert books.link.execute(change).rowcount
    found = await books.found()
    books.link.execute(undo)
    assert found
    assert all(each.startswith("account_changed") for each in found)
    assert await books.found() == []


async def test_an_erased_tenant_is_no_difference(books: Books, api: Api) -> None:
    """Its keys are gone, its name is a pseudonym; but a key of it would be one."""
    gone = await api.new_tenant("erased")
    done = await api.admin("DELETE", f"/admin/v1/tenants/{gone.id}?grace_days=0")
    assert done.status_code < 300, done.text
    assert gone.id in await Eraser(api.state).run_once()
    assert await books.found() == []
    copied: LiteralString = (
        "INSERT INTO api_keys (id, tenant_id, name, prefix, hash, scopes) VALUES "
        "('key_back', %s, 'back', 'tn_back', 'x', '{}')"
    )
    books.link.execute(copied, [gone.id])
    found = await books.found()
    books.link.execute("DELETE FROM api_keys WHERE id = 'key_back'")
    assert found == ["account_changed api_keys key_back"]


async def test_a_changed_event_is_named(books: Books) -> None:
    table = Table(books.link, "usage_events")
    table.keep()
    try:
        table.change(table.some_rows()[0], "output_tokens", CHANGES["integer"])
        (first, *_) = (await asyncio.to_thread(books.proved)).named
        assert first.kind == "event_changed"
        assert first.subject.startswith("chatcmpl_")
        assert first.subject.endswith(":0")
        assert first.tenant_id is not None
        assert first.day is not None
    finally:
        table.restore()


def test_every_table_of_the_books_is_tried(books: Books) -> None:
    """A new one has to be added here, or said to hold no money."""
    found = books.link.execute(
        sql.SQL(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname ~ {}"
        ).format(sql.Literal("^(usage|occupancy|unrated|price|ledger|invoice|rated)"))
    )
    others = {str(name) for (name,) in found} - TABLES.keys()
    assert others <= {"ledger_due", "usage_archives"}, "marks, and what a reading of it proves"
