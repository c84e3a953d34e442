"""Reads the books of a platform that has been stopped from its own PostgreSQL and outbox, and not
through the API, and has them reconciled: what `tenora bench kills` judges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from tenora_bench.books import Books
from tenora_engine.events import EngineTotals, UsageRecord
from tenora_engine.transport.outbox import UsageOutbox
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database, DatabaseUrls, libpq_url
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import post_due
from tenora_platform.ledger.service import Ledger
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.task import Result, Task
from tenora_platform.secret import load_secret
from tenora_platform.settings import Settings
from tenora_platform.usage.ids import request_text

Link = psycopg.Connection[tuple[Any, ...]]


def read_books(data_dir: Path) -> Books:
    """Starts the platform's own PostgreSQL for as long as it takes, has the ledger post what is due
    and reconciles all. Raises EmbeddedServerError while the platform runs."""
    with closing(UsageOutbox(data_dir / "outbox")) as outbox:
        pending = sum(isinstance(each, UsageRecord) for each in outbox.oldest(outbox.pending))
        totals = outbox.totals("")
    with _database(data_dir) as urls:
        url = libpq_url(urls.admin)
        asyncio.run(_post_all(urls))
        settings = Settings(data_dir=data_dir)
        secret, objects = urls.secret.root, settings.object_store_url
        result = prove(Task(database_url=url, secret=secret, object_store=objects))
        with psycopg.connect(url) as link:
            return _books(link, pending, totals, result)


@contextmanager
def _database(data_dir: Path) -> Iterator[DatabaseUrls]:
    secret = load_secret(data_dir, None)
    postgres = EmbeddedPostgres(data_dir / "postgres", secret)
    try:
        postgres.start()
        yield database_urls(postgres.url, secret, DEFAULT)
    finally:
        postgres.stop()


async def _post_all(urls: DatabaseUrls) -> None:
    """Of a day that runs too, which a worker posts each quarter of an hour: else the reconciliation
    would only say that it waits."""
    db, ledger = Database(urls), Ledger(urls.secret)
    try:
        async with db.admin_session() as session:
            tenants = list(await session.scalars(text("select distinct tenant_id from ledger_due")))
        for tenant_id in sorted(tenants):
            async with db.admin_session() as session:
                await post_due(session, ledger, tenant_id, datetime.now(UTC))
    finally:
        await db.close()


def _books(link: Link, pending: int, totals: EngineTotals, result: Result) -> Books:
    events: dict[str, list[tuple[int, int]]] = {}
    for kind, request, prompt, output in link.execute(
        "select kind, request, prompt_tokens, output_tokens from usage_events"
        " join usage_series on usage_series.id = series_id"
    ):
        events.setdefault(request_text(kind, request), []).append((prompt, output))
    tenants = link.execute("select count(distinct tenant_id) from usage_days").fetchone()
    looked = result.looked
    return Books(
        events=events,
        rated={
            meter: int(quantity)
            for meter, quantity in link.execute(
                "select meter, sum(quantity) from usage_day_meters"
                " where price_version_no > 0 and amount > 0 group by meter"
            )
        },
        unrated=_count(link, "unrated_events"),
        unrated_and_rated=_count(
            link,
            "unrated_events join usage_events using (request, sequence)"
            " where price_version_no is not null",
        ),
        dead_letters=_count(link, "usage_dead_letters"),
        in_outbox=pending,
        compared={
            "events": looked.events,
            "tenants": int(tenants[0]) if tenants else 0,
            "days": looked.days,
            "hour_rows": looked.hour_rows,
            "day_rows": looked.day_rows,
            "ledger_amounts": looked.ledger_amounts,
            "engine_days": len(totals.days),
        },
        differences=_differences(link, totals, result),
    )


def _differences(link: Link, totals: EngineTotals, result: Result) -> list[str]:
    """Also between engine and events of a day that runs, of which a reconciliation only says what
    is on its way: nothing is."""
    found = [
        f"{each.kind}: {each.subject}: expected {each.expected}, found {each.found}"
        for each in result.named
    ]
    counted = {
        (each.tenant, each.day): (
            each.sequences,
            each.prompt_tokens,
            each.cached_tokens,
            each.output_tokens,
        )
        for each in totals.days
    }
    stored = {
        (str(tenant_id), str(day)): tuple(counts)
        for tenant_id, day, *counts in link.execute(
            "select id, (event_time at time zone 'UTC')::date, count(*), sum(prompt_tokens),"
            " sum(cached_tokens), sum(output_tokens) from usage_events"
            " join tenants on tenants.no = tenant_no group by 1, 2"
        )
    }
    return found + [
        (
            f"the engine counted {counted.get(place)} of {place}, but its events add up "
            f"to {stored.get(place)}"
        )
        for place in sorted(counted.keys() | stored.keys())
        if counted.get(place) != stored.get(place)
    ]


def _count(link: Link, rows: str) -> int:
    found = link.execute(f"select count(*) from {rows}".encode()).fetchone()
    return int(found[0]) if found else 0
