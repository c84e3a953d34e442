"""What a platform that has been stopped has on its books: usage events, rated lines, what still
waits. Read from its embedded PostgreSQL and its outbox, not through the API that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tenora_engine.transport.outbox import UsageOutbox
from tenora_platform.db import psycopg_url
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.secret import load_secret


@dataclass(frozen=True)
class Books:
    """`events`: request id -> (prompt tokens, output tokens) of each of its events."""

    events: dict[str, list[tuple[int, int]]]
    rated: dict[str, int]  # meter -> quantity, over all lines
    unrated: int
    unrated_and_rated: int
    dead_letters: int
    in_outbox: int  # records that nobody has acknowledged

    @property
    def output_tokens(self) -> int:
        return sum(output for rows in self.events.values() for _, output in rows)

    def summary(self) -> dict[str, Any]:
        return {
            "events": sum(map(len, self.events.values())),
            "output_tokens": self.output_tokens,
            "rated": self.rated,
            "unrated": self.unrated,
            "dead_letters": self.dead_letters,
            "in_outbox": self.in_outbox,
        }

    def faults(self) -> list[str]:
        """Where the books contradict themselves."""
        found = []
        if self.rated and not self.unrated and self.rated.get("output", 0) != self.output_tokens:
            found.append(f"{self.output_tokens} output tokens, rated {self.rated.get('output')}")
        for name in ("unrated_and_rated", "dead_letters", "in_outbox"):
            if getattr(self, name):
                found.append(f"{getattr(self, name)} {name.replace('_', ' ')}")
        return found


def read_books(data_dir: Path) -> Books:
    """Starts the platform's own PostgreSQL for as long as it takes. Raises EmbeddedServerError
    while the platform runs."""
    outbox = UsageOutbox(data_dir / "outbox")
    pending = outbox.pending
    outbox.close()
    postgres = EmbeddedPostgres(data_dir / "postgres", load_secret(data_dir, None))
    try:
        postgres.start()
        url = psycopg_url(postgres.url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as link:
            events: dict[str, list[tuple[int, int]]] = {}
            for request_id, prompt, output in link.execute(
                "select request_id, prompt_tokens, output_tokens from usage_events"
            ):
                events.setdefault(request_id, []).append((prompt, output))
            return Books(
                events=events,
                rated={
                    meter: int(quantity)
                    for meter, quantity in link.execute(
                        "select meter, sum(quantity) from rated_lines group by meter"
                    )
                },
                unrated=_count(link, "unrated_events"),
                unrated_and_rated=_count(link, "unrated_events join rated_lines using (event_id)"),
                dead_letters=_count(link, "usage_dead_letters"),
                in_outbox=pending,
            )
    finally:
        postgres.stop()


def _count(link: psycopg.Connection[Any], rows: str) -> int:
    found = link.execute(f"select count(*) from {rows}".encode()).fetchone()
    return int(found[0]) if found else 0
