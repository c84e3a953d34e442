"""Fills a database that nothing runs on with a month of usage, by the same code as the worker's:
events through the books of usage, then the ledger. For `tenora bench money`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tenora_bench.client import BenchError
from tenora_bench.money.records import Adapter, Payer, month_of_records
from tenora_bench.money.run import Filled, Load
from tenora_engine.events import UsageRecord
from tenora_platform.bootstrap import database_urls, prepare_database
from tenora_platform.db import Database
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger
from tenora_platform.secret import load_secret
from tenora_platform.task_groups import task_group
from tenora_platform.usage.books import UsageBooks

MODEL = "bench-base"
RECORDS = 500
"""Of one transaction; the engine gives as many at once when they have piled up."""
ALONE = 40  # transactions of one sink
AT_ONCE = 4
_ADAPTERS, _KEYS = 3, 2
_MOVED = ["usage_series", "usage_hours", "usage_days", "ledger_transactions", "ledger_entries"]


def fill(data_dir: Path, load: Load) -> Filled:
    """Raises BenchError."""
    secret = load_secret(data_dir, None)
    postgres = EmbeddedPostgres(data_dir / "postgres", secret)
    postgres.start()
    try:
        urls = database_urls(postgres.url, secret, DEFAULT)
        prepare_database(urls)
        return asyncio.run(_fill(Database(urls), Ledger(secret), load))
    finally:
        postgres.stop()


async def _fill(db: Database, ledger: Ledger, load: Load) -> Filled:
    db = db.patient()
    try:
        payers = await _payers(db, load)
        stored, request_id = await _store(db, payers, load)
        posted = await _post(db, ledger, payers)
        sizes = await _sizes(db, load.events)
    finally:
        await db.close()
    return Filled({**stored, **posted, **sizes}, payers[0].id, request_id)


async def _payers(db: Database, load: Load) -> list[Payer]:
    """Tenants as they are found in the tables, the first with the most events."""
    payers = []
    async with db.admin_session() as session:
        for number in range(load.tenants):
            tenant = new_id("tenant")
            adapters = [
                Adapter(new_id("adapter"), new_id("version"), f"sha256:{number:032x}{each:032x}")
                for each in range(_ADAPTERS)
            ]
            keys = [new_id("key") for _ in range(_KEYS)]
            payers.append(Payer(tenant, keys, [None, *adapters]))
            values = {"tenant": tenant, "name": f"bench-{number}", "at": load.begin}
            await session.execute(text(_TENANT), values)
            for place, adapter in enumerate(adapters):
                values = {"tenant": tenant, "adapter": adapter.id, "version": adapter.version_id}
                await session.execute(text(_ADAPTER), {**values, "name": f"adapter-{place}"})
                await session.execute(text(_VERSION), {**values, "digest": adapter.digest})
    return payers


async def _store(db: Database, payers: Sequence[Payer], load: Load) -> tuple[dict[str, Any], str]:
    """The first part in one transaction after the other, as one worker does, which is timed; the
    rest as several workers do. Also a request of the first payer's."""
    books, begun = UsageBooks(db), time.perf_counter()
    waiting = batches(month_of_records(payers, load.events, load.begin, load.end, MODEL))
    mine: list[str] = []

    async def store(some: Sequence[UsageRecord]) -> float:
        began = time.perf_counter()
        booked = await books.store(some)
        if booked.bad:
            raise BenchError(f"a record was not stored: {booked.bad[0][1]}")
        mine.extend(each.request_id for each in some if each.tenant == payers[0].id)
        return time.perf_counter() - began

    async def work() -> None:
        for some in waiting:
            await store(some)

    alone = [(len(some), await store(some)) for some in islice(waiting, ALONE)]
    async with task_group() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    if not mine:
        raise BenchError("the largest tenant has no request; ask for more events")
    took = time.perf_counter() - begun
    one = sum(count for count, _ in alone) / sum(seconds for _, seconds in alone)
    return {"one_sink_per_s": one, "store_s": took, "stored_per_s": load.events / took}, mine[-1]


def batches(records: Iterator[UsageRecord]) -> Iterator[list[UsageRecord]]:
    """Each of one transaction."""
    while batch := list(islice(records, RECORDS)):
        yield batch


async def _post(db: Database, ledger: Ledger, payers: Sequence[Payer]) -> dict[str, Any]:
    """All days of a tenant in one transaction, as in an invoice run that no worker preceded."""
    waiting, began = iter(payers), time.perf_counter()
    async with db.admin_session() as session:
        days = int(await session.scalar(text("SELECT count(*) FROM ledger_due")) or 0)

    async def work() -> None:
        for payer in waiting:
            async with db.admin_session() as session:
                await post_due(session, ledger, payer.id, datetime.now(UTC))

    async with task_group() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    took = time.perf_counter() - began
    return {"ledger_days": days, "ledger_s": took, "ledger_days_per_s": days / took}


async def _sizes(db: Database, events: int) -> dict[str, Any]:
    """Bytes on disk for each event, indexes and all: of its own row, and with what it moves."""
    async with db.admin_session() as session:
        found = {
            table: int(await session.scalar(text(_SIZE), {"table": table}) or 0) for table in _MOVED
        }
        own = int(await session.scalar(text(_PARTITIONS)) or 0)
    return {
        "event_bytes": own / events,
        **{f"{table}_bytes_an_event": size / events for table, size in found.items()},
        "bytes_an_event_with_all": (own + sum(found.values())) / events,
    }


_TENANT = (
    "INSERT INTO tenants (id, name, plan, created_at) VALUES (:tenant, :name, 'standard', :at)"
)
_ADAPTER = "INSERT INTO adapters (id, tenant_id, name) VALUES (:adapter, :tenant, :name)"
_VERSION = """
    INSERT INTO adapter_versions
      (id, tenant_id, adapter_id, number, state, bytes, weights_sha256, digest, rank)
    VALUES (:version, :tenant, :adapter, 1, 'active', 1000000, '', :digest, 8)
"""
_SIZE = "SELECT pg_total_relation_size(CAST(:table AS regclass))"
_PARTITIONS = """
    SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits
     WHERE inhparent = 'usage_events'::regclass
"""
