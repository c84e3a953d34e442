"""Fills the database of a running platform with a tenant's adapters and their requests, by the same
code as the worker's: events through the books of usage. For `tenora bench portal`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from sqlalchemy import text

from tenora_bench.client import BenchError
from tenora_bench.money.records import Adapter, Payer, month_of_records
from tenora_bench.portal.load import PortalLoad, by_popularity
from tenora_platform.bootstrap import database_urls
from tenora_platform.cli.money_fill import AT_ONCE, MODEL, batches
from tenora_platform.db import Database
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.secret import load_secret
from tenora_platform.task_groups import task_group
from tenora_platform.usage.books import UsageBooks

_ADAPTERS = "INSERT INTO adapters (id, tenant_id, name) VALUES (:adapter, :tenant, :name)"
_VERSIONS = """
    INSERT INTO adapter_versions
      (id, tenant_id, adapter_id, number, state, bytes, weights_sha256, digest, rank)
    VALUES (:version, :tenant, :adapter, 1, 'active', 4900000, '', :digest, 16)
"""
_TENANTS = (
    "INSERT INTO tenants (id, name, plan, created_at) VALUES (:tenant, :name, 'standard', :at)"
)


def fill(data_dir: Path, tenant_id: str, load: PortalLoad) -> list[Adapter]:
    """The tenant's adapters, named adapter-00000 and so on. Raises BenchError."""
    secret = load_secret(data_dir, None)
    url = EmbeddedPostgres(data_dir / "postgres", secret).running_url()
    if url is None:
        raise BenchError(f"no database runs in {data_dir}")
    adapters = asyncio.run(_fill(Database(database_urls(url, secret, DEFAULT)), tenant_id, load))
    with psycopg.connect(url, autocommit=True) as owner:  # nobody else may look at all tables
        owner.execute("ANALYZE")
    return adapters


async def _fill(db: Database, tenant_id: str, load: PortalLoad) -> list[Adapter]:
    db = db.patient()
    try:
        main = await _with_adapters(db, tenant_id, load.adapters)
        own = [each for each in main.adapters if each is not None]
        popular = Payer(tenant_id, main.keys, by_popularity(own, load.seed))
        await _store(db, popular, load.requests, load)
        for number, other in enumerate(await _others(db, load), 1):
            await _store(db, other, load.requests_of_another, load, number)
    finally:
        await db.close()
    return own


async def _with_adapters(db: Database, tenant_id: str, count: int) -> Payer:
    adapters = [
        Adapter(
            new_id("adapter"),
            new_id("version"),
            f"sha256:{tenant_id.encode().hex():.48}{number:016x}",
        )
        for number in range(count)
    ]
    values = [
        {
            "tenant": tenant_id,
            "adapter": each.id,
            "version": each.version_id,
            "digest": each.digest,
            "name": f"adapter-{number:05}",
        }
        for number, each in enumerate(adapters)
    ]
    async with db.admin_session() as session:
        for statement in (_ADAPTERS, _VERSIONS):
            await session.execute(text(statement), values)
    return Payer(tenant_id, [new_id("key") for _ in range(2)], [None, *adapters])


async def _others(db: Database, load: PortalLoad) -> list[Payer]:
    ids = [new_id("tenant") for _ in range(load.others)]
    values = [
        {"tenant": each, "name": f"Tenant {number:04}", "at": load.begin}
        for number, each in enumerate(ids)
    ]
    if values:
        async with db.admin_session() as session:
            await session.execute(text(_TENANTS), values)
    return [await _with_adapters(db, each, 3) for each in ids]


async def _store(db: Database, payer: Payer, count: int, load: PortalLoad, number: int = 0) -> None:
    """`number` sets one payer's requests apart from another's."""
    books, seed = UsageBooks(db), load.seed + number
    records = month_of_records([payer], count, load.begin, load.end, MODEL, seed)
    waiting = batches(records)

    async def work() -> None:
        for some in waiting:
            booked = await books.store(some)
            if booked.bad:
                raise BenchError(f"a record was not stored: {booked.bad[0][1]}")

    async with task_group() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
