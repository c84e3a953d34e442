"""Usage of the month before in the books of a platform that runs: by the code of its own worker, at
times that no request of today has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from tenora_platform.bootstrap import database_urls
from tenora_platform.db import Database
from tenora_platform.embedded.postgres import EmbeddedPostgres
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.invoices.period import before, midnight, month_of
from tenora_platform.secret import load_secret
from tenora_platform.usage.books import UsageBooks
from usage_records import usage_record

DAYS = 3


def last_month() -> date:
    return before(month_of(datetime.now(UTC)))


@dataclass(frozen=True)
class Asked:
    """What requests were for: the base model, or a version of an adapter."""

    tenant_id: str
    api_key_id: str
    model: str
    adapter_id: str = ""
    version_id: str = ""
    digest: str | None = None

    @property
    def context(self) -> dict[str, str]:
        of_adapter = {"adapter_id": self.adapter_id} if self.adapter_id else {}
        return {
            "tenant_id": self.tenant_id,
            "api_key_id": self.api_key_id,
            "adapter_version_id": self.version_id,
            "model": self.model,
            "plan": "standard",
        } | of_adapter


def book_last_month(data: Path, asked: Sequence[Asked]) -> None:
    """One request of each on each of three days, in the books of the platform whose data directory
    this is. In a thread with a loop of its own: a browser's test has one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _book(data, asked)).result()


async def _book(data: Path, asked: Sequence[Asked]) -> None:
    secret = load_secret(data, None)
    url = EmbeddedPostgres(data / "postgres", secret).running_url()
    assert url is not None, "the platform does not run"
    db = Database(database_urls(url, secret, DEFAULT), connections=2)
    try:
        booked = await UsageBooks(db).store(
            [
                usage_record(
                    f"{new_id('chatcmpl')}:0",
                    each.tenant_id,
                    context=each.context,
                    output_tokens=100_000 * (day + 1),
                    arrival_s=end_s - 2,
                    first_token_s=end_s - 1,
                    finished_s=end_s,
                    adapter_digest=each.digest,
                )
                for day in range(DAYS)
                for each in asked
                for end_s in [(midnight(last_month()) + timedelta(days=day, hours=1)).timestamp()]
            ]
        )
        assert not booked.bad, booked.bad
    finally:
        await db.close()
