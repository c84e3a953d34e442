"""Reads the books of a platform that has been stopped from its own PostgreSQL and outbox, and not
through the API, which is what `tenora bench kills` judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from tenora_bench.books import Books
from tenora_engine.events import UsageRecord
from tenora_engine.transport.outbox import UsageOutbox
from tenora_platform.db import psycopg_url
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.secret import load_secret
from tenora_platform.usage.ids import request_text


def read_books(data_dir: Path) -> Books:
    """Starts the platform's own PostgreSQL for as long as it takes. Raises EmbeddedServerError
    while the platform runs."""
    outbox = UsageOutbox(data_dir / "outbox")
    pending = sum(isinstance(each, UsageRecord) for each in outbox.oldest(outbox.pending))
    outbox.close()
    postgres = EmbeddedPostgres(data_dir / "postgres", load_secret(data_dir, None))
    try:
        postgres.start()
        url = psycopg_url(postgres.url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as link:
            events: dict[str, list[tuple[int, int]]] = {}
            for kind, request, prompt, output in link.execute(
                "select kind, request, prompt_tokens, output_tokens from usage_events"
                " join usage_series on usage_series.id = series_id"
            ):
                events.setdefault(request_text(kind, request), []).append((prompt, output))
            return Books(
                events=events,
                rated={
                    meter: int(quantity)
                    for meter, quantity in link.execute(
                        "select meter, sum(quantity) from usage_days"
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
            )
    finally:
        postgres.stop()


def _count(link: psycopg.Connection[Any], rows: str) -> int:
    found = link.execute(f"select count(*) from {rows}".encode()).fetchone()
    return int(found[0]) if found else 0
