"""An installation with something of everything that a backup has to hold: events, invoices, a
ledger, adapters, kept contents, a receipt, an upload that is half there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import text

from adapter_files import adapter_form
from api_harness import SECRET, Api, TestTenant
from books import record, store
from last_month import last_month
from platform_fixtures import plain_url
from shell import run
from tenora_platform.invoices.runs import InvoiceRuns, Wanted
from tenora_platform.ledger.poster import Poster
from tenora_platform.registry.worker import IntakeWorker
from tenora_platform.settings import Settings

FRESH = frozenset({"alembic_version", "database_identity"})
"""Tables of which a restored database has rows of its own."""


@dataclass(frozen=True)
class Whole:
    """What a test goes on with. `parts`: of the upload `upload_id`, of whose `weights` `sent` bytes
    have come."""

    tenant: TestTenant
    other: TestTenant
    receipt: bytes
    upload_id: str
    parts: list[str]
    weights: bytes
    sent: int


def noon(days_ago: int) -> float:
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    return (today - timedelta(days=days_ago)).timestamp()


async def fill(api: Api, *, events: int = 40, adapters: int = 2) -> Whole:
    await api.put_plan("whole", {}, sla_class="priority", stored_responses=True)
    tenants = [await api.new_tenant(name, plan="whole") for name in ("acme", "globex")]
    days = {"keep_contents_days": 7, "stored_response_days": 7}
    chosen = await api.call(tenants[0].key, "PATCH", "/v1/settings", json=days)
    assert chosen.status_code == 200, chosen.text
    for number in range(adapters):
        files = adapter_form(api.engine.model, f"adapter-{number}", seed=number)
        tenant = tenants[number % 2]
        made = await api.call(tenant.key, "POST", "/v1/adapters", files=files)
        assert made.status_code == 202, made.text
    await check_all(api)
    await book(api, tenants, events)
    asked = await api.call(tenants[0].key, "POST", "/v1/chat/completions", json=CHAT)
    assert asked.status_code == 200, asked.text
    body = {"model": "fake-base", "input": "the secret recipe"}
    made = await api.call(tenants[0].key, "POST", "/v1/responses", json=body)
    assert made.json()["store"] is True, made.text
    receipt = await receipt_of(api, tenants[0], asked.json()["id"])
    weights = adapter_form(api.engine.model, "late", seed=99)["weights"][1]
    half = len(weights) // 2
    begun = await api.call(tenants[0].key, "POST", "/v1/uploads", json={"bytes": len(weights)})
    upload = begun.json()["id"]
    part = await send_part(api, tenants[0], upload, weights[:half])
    return Whole(tenants[0], tenants[1], receipt, upload, [part], weights, half)


CHAT = {"model": "fake-base", "messages": [{"role": "user", "content": "the secret recipe"}]}


async def go_on(api: Api, whole: Whole) -> str:
    """Send the rest of the upload and make an adapter of it; the state that it comes to."""
    part = await send_part(api, whole.tenant, whole.upload_id, whole.weights[whole.sent :])
    path = f"/v1/uploads/{whole.upload_id}/complete"
    done = await api.call(whole.tenant.key, "POST", path, json={"part_ids": [*whole.parts, part]})
    assert done.status_code == 200, done.text
    form = adapter_form(api.engine.model, "late", seed=99)
    del form["weights"]
    form["upload_id"] = (None, whole.upload_id)
    made = await api.call(whole.tenant.key, "POST", "/v1/adapters", files=form)
    assert made.status_code == 202, made.text
    await check_all(api)
    found = await api.call(whole.tenant.key, "GET", "/v1/adapters/late")
    return str(found.json()["state"])


async def check_all(api: Api) -> None:
    """Until nothing waits for its check: the application's own worker may be at one."""
    query = "SELECT count(*) FROM adapter_versions WHERE state IN ('quarantined', 'validating')"
    async with asyncio.timeout(60):
        while True:
            await IntakeWorker(api.state).run_once()
            async with api.state.db.admin_session() as session:
                if not await session.scalar(text(query)):
                    return
            await asyncio.sleep(0.02)


async def book(api: Api, tenants: list[TestTenant], events: int) -> None:
    """Half of them of the month before, with its invoices, half of today and yesterday."""
    first = datetime.combine(last_month(), datetime.min.time(), UTC).timestamp()
    since = datetime.combine(last_month(), datetime.min.time(), UTC).isoformat()
    meters = {"uncached_prefill": "0.20", "cached_prefill": "0.05", "output": "0.60"}
    body = {"currency": "USD", "per_million": meters, "effective_from": since}
    made = await api.admin("POST", "/admin/v1/prices", json=body)
    assert made.status_code == 201, made.text
    times = [first + 3600 * number for number in range(events // 2)]
    times += [noon(number % 2) + number for number in range(events - events // 2)]
    await store(api, [record(tenants[number % 2].id, at_s) for number, at_s in enumerate(times)])
    await Poster(api.state.db, api.state.ledger).run_once()
    closed = datetime.now(UTC) + timedelta(days=40)  # the grace of last month is over
    runs = InvoiceRuns(api.state.db, api.state.ledger, api.state.audit, "t", now=lambda: closed)
    report = await runs.run(Wanted(last_month(), None))
    assert not report.failed, report.failed
    assert len(report.made) == len(tenants)
    await Poster(api.state.db, api.state.ledger).run_once()


async def receipt_of(api: Api, tenant: TestTenant, request_id: str) -> bytes:
    async with asyncio.timeout(20):
        while True:
            answer = await api.call(tenant.key, "GET", f"/v1/requests/{request_id}")
            if answer.status_code == 200:
                return answer.content
            await asyncio.sleep(0.05)


async def send_part(api: Api, tenant: TestTenant, upload_id: str, data: bytes) -> str:
    path = f"/v1/uploads/{upload_id}/parts"
    sent = await api.call(tenant.key, "POST", path, files={"data": data})
    assert sent.status_code == 200, sent.text
    return str(sent.json()["id"])


def tables(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in an order that is the same for the same rows."""
    with psycopg.connect(plain_url(url)) as link:
        named = link.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1"
        ).fetchall()
        rows = sql.SQL("SELECT t::text FROM {} t ORDER BY 1")
        return {
            name: link.execute(rows.format(sql.Identifier(name))).fetchall()
            for (name,) in named
            if name not in FRESH
        }


def tenora(settings: Settings, *words: str, secret: str | None = SECRET) -> tuple[int, str]:
    """A command at an installation, with only what its settings say of where things are."""
    named = {
        "TENORA_DATABASE_URL": settings.database_url,
        "TENORA_REDIS_URL": settings.redis_url,
        "TENORA_OBJECT_STORE": settings.object_store,
        "TENORA_SECRET": secret,
        "TENORA_INSTALLATION": settings.installation,
        "TENORA_DATA_DIR": str(settings.data_dir),
    }
    return run(*words, **{name: value for name, value in named.items() if value is not None})
