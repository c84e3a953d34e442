"""Months that have left the database are proved by their files: these agree with the sums, and
whoever changes a file, takes it away or changes what is known of it is found."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.types.json import Json
from sqlalchemy import text

from api_harness import Api
from books import CHANGES, REFUSED, Table, by_hand, reconcile, record, store
from platform_fixtures import plain_url
from tenora_engine.events import UsageRecord
from tenora_engine.transport.totals import Totals
from tenora_platform.bootstrap import database_urls
from tenora_platform.ids import ulid_text
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import Poster
from tenora_platform.operations.metrics import Metrics
from tenora_platform.reconciliation.differences import Difference, Kind
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.task import Scope, Task
from tenora_platform.usage.archive import UsageArchive, events_in
from tenora_platform.usage.engine_totals import keep
from tenora_platform.usage.partitions import UsageMonths, after
from tenora_platform.usage.seal import EVENT_COLUMNS
from usage_records import usage_record

TODAY = datetime.now(UTC).date()
MONTH = after(TODAY, -5)
BEGIN = datetime(MONTH.year, MONTH.month, 1, tzinfo=UTC)
KEPT = {"created_at", "dropped_at"}
"""Columns of usage_archives that say when something was done."""
TIERED = {
    "plan": "tiered",
    "effective_from": "2020-02-01T00:00:00Z",
    "per_million": {
        "uncached_prefill": [{"price": "2"}, {"from": 25, "price": "1"}],
        "cached_prefill": "0.5",
        "output": "3",
    },
}
_numbers = itertools.count(1)


def old_record(tenant_id: str, at: datetime, plan: str, sequence: int = 0) -> UsageRecord:
    """Of a request with an id of that time."""
    request = f"chatcmpl_{ulid_text((int(at.timestamp() * 1000) << 80) + next(_numbers))}"
    ended = at.timestamp()
    context = {"tenant_id": tenant_id, "model": "fake-base", "plan": plan}
    times = {"arrival_s": ended, "first_token_s": ended + 0.1, "finished_s": ended + 0.3}
    return usage_record(f"{request}:{sequence}", tenant_id, context=context, **times)


async def use(api: Api, counted: Totals, records: Sequence[UsageRecord]) -> None:
    """Counted by an engine, stored, posted."""
    counted.add(0, records)
    totals = msgspec.structs.replace(counted.view("", []), whole_since="2010-01-01")
    await store(api, records)
    async with api.state.db.admin_session() as session:
        await keep(session, totals)
    await Poster(api.state.db, api.state.ledger).run_once()


@dataclass
class Kept:
    """Books of which a month is in a file."""

    task: Task
    link: psycopg.Connection[tuple[Any, ...]]
    file: Path
    tenants: list[str]
    counted: Totals

    async def found(self, **scope: Any) -> list[Difference]:
        task = msgspec.structs.replace(self.task, scope=Scope(**scope))
        return (await asyncio.to_thread(prove, task)).named

    def row_says(self, content: bytes, **more: object) -> None:
        """As somebody would who wants the file to pass for the one that was written."""
        values = {"sha256": sha256(content).hexdigest(), "bytes": len(content), **more}
        names = ", ".join(f"{name} = %s" for name in values)
        self.link.execute(f"UPDATE usage_archives SET {names}".encode(), list(values.values()))


@pytest.fixture(scope="module")
async def kept(api: Api, database_url: str) -> AsyncIterator[Kept]:
    await api.put_plan("tiered", {})
    tenants = [(await api.new_tenant(f"kept-{plan}", plan)).id for plan in ("tiered", "standard")]
    made = await api.admin("POST", "/admin/v1/prices", json=TIERED)
    assert made.status_code == 201, made.text
    async with api.state.db.admin_session() as session:
        await session.execute(text("select create_usage_month(:m)"), {"m": MONTH})
    old = [
        old_record(tenant_id, BEGIN + timedelta(days=day), plan)
        for tenant_id, plan in zip(tenants, ("tiered", "standard"), strict=True)
        for day in (0, 3, 3, 9)
    ]
    new = [record(tenant_id, datetime.now(UTC).timestamp()) for tenant_id in tenants]
    # Its request is of today, and so is its row; its day is in the month that leaves.
    late = record(tenants[1], (BEGIN + timedelta(days=3)).timestamp())
    counted = Totals(None)
    await use(api, counted, [*old, *new, late])
    settings = api.state.settings
    archive = UsageArchive(api.state.db, api.state.objects, settings.installation)
    assert await UsageMonths(api.state.db, archive, api.state.store, Metrics(), 4).run_once(
        TODAY
    ) == [MONTH]
    async with api.state.db.admin_session() as session:
        [part] = await archive.parts(session)
    # Was it billed? It comes again, because nobody had acknowledged it, and only the file knows.
    await store(api, old[:1])
    urls = database_urls(database_url, api.state.secret, DEFAULT)
    task = Task(
        database_url=urls.admin.set(drivername="postgresql").render_as_string(hide_password=False),
        secret=api.state.secret.root,
        object_store=settings.object_store_url,
    )
    file = Path(settings.object_store_url) / part.path
    with by_hand(plain_url(database_url)) as link:
        yield Kept(task, link, file, tenants, counted)


@pytest.fixture
def row(kept: Kept) -> Iterator[Table]:
    """What is known of the file; put right again afterwards, like the file."""
    table, content = Table(kept.link, "usage_archives"), kept.file.read_bytes()
    table.keep()
    yield table
    table.restore()
    kept.file.write_bytes(content)


async def test_an_archived_month_agrees(api: Api, kept: Kept) -> None:
    result = await asyncio.to_thread(prove, kept.task)
    assert result.named == []
    assert result.looked.archived_events == 8
    assert result.looked.events == 3
    assert result.waiting.dead_letters == 0, "what came again is in the file"
    run = await reconcile(api)
    assert run["differences"] == {}, run["named"]
    run = await reconcile(api, mode="recent")
    assert run["differences"] == {}, run["named"]
    assert run["looked"]["archived_events"] == 0, "none of its days has moved"
    late = record(kept.tenants[1], (BEGIN + timedelta(days=3)).timestamp())
    await use(api, kept.counted, [late])
    run = await reconcile(api, mode="recent")
    assert run["differences"] == {}, run["named"]
    assert run["looked"]["archived_events"] == 2, "those of the day that has moved"


@pytest.mark.parametrize(
    ("scope", "archived"),
    [({"last": MONTH}, 2), ({"first": MONTH + timedelta(days=1), "last": after(MONTH, 1)}, 6)],
)
async def test_a_part_of_it_agrees(kept: Kept, scope: dict[str, Any], archived: int) -> None:
    for tenant_id, count in ((None, archived), (kept.tenants[0], archived // 2)):
        task = msgspec.structs.replace(kept.task, scope=Scope(tenant_id=tenant_id, **scope))
        result = await asyncio.to_thread(prove, task)
        assert result.named == []
        assert result.looked.archived_events == count


def with_a_byte_changed(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


@pytest.mark.parametrize(
    "change", [with_a_byte_changed, lambda content: content[:-1], lambda content: b""]
)
async def test_a_changed_file_is_found(
    kept: Kept, row: Table, change: Callable[[bytes], bytes]
) -> None:
    content = change(kept.file.read_bytes())
    kept.file.write_bytes(content)
    first, *_ = await kept.found()
    assert first.kind == "archive_wrong"
    assert kept.file.match(first.subject)
    assert first.found == sha256(content).hexdigest()
    kept.row_says(content)
    assert "archive_wrong" in {each.kind for each in await kept.found()}


async def test_a_missing_file_is_found(kept: Kept, row: Table) -> None:
    kept.file.unlink()
    first, *_ = await kept.found()
    assert (first.kind, first.day) == ("archive_missing", MONTH)
    assert kept.file.match(first.subject)


async def test_a_changed_event_is_named(kept: Kept, row: Table) -> None:
    plain = gzip.decompress(kept.file.read_bytes())
    changed = plain.replace(b'"output_tokens":5', b'"output_tokens":4', 1)
    content = gzip.compress(changed)
    kept.file.write_bytes(content)
    kept.row_says(content)
    event = next(each for each in events_in(content) if each.values[8] == 4)
    kinds = {each.kind: each.subject for each in await kept.found()}
    assert kinds[Kind.EVENT_CHANGED] == event.event_id
    assert kinds.keys() >= {"archive_wrong", "amount_wrong", "hour_wrong", "day_wrong"}


async def test_a_deleted_event_is_found(kept: Kept, row: Table) -> None:
    """Though the row of the file says what is left in it."""
    lines = gzip.decompress(kept.file.read_bytes()).splitlines(keepends=True)
    content = gzip.compress(b"".join(lines[:1] + lines[2:]))
    kept.file.write_bytes(content)
    left, amount = list(events_in(content)), EVENT_COLUMNS.index("amount")
    sums = {
        "prompt_tokens": sum(each.values[6] for each in left),
        "cached_tokens": sum(each.values[7] for each in left),
        "output_tokens": sum(each.values[8] for each in left),
        "amount": f"{sum(each.values[amount] for each in left):.12f}",
    }
    kept.row_says(content, rows=len(left), sums=Json(sums))
    assert "archive_wrong" not in (kinds := {each.kind for each in await kept.found()})
    assert kinds >= {"hour_wrong", "day_wrong"}


async def test_what_is_known_of_the_file_cannot_be_changed(kept: Kept, row: Table) -> None:
    missed = []
    for column, kind in row.columns().items():
        if column in KEPT:
            continue
        try:
            row.change(0, column, CHANGES[kind])
        except REFUSED:
            continue
        if not await kept.found():
            missed.append(column)
        row.restore()
    assert not missed
    kept.link.execute("UPDATE usage_archives SET dropped_at = NULL")
    assert "hour_wrong" in {each.kind for each in await kept.found()}
    row.restore()
    row.copy(0)
    assert "archive_wrong" in {each.kind for each in await kept.found()}
    row.delete(0)
    row.delete(0)
    assert "hour_wrong" in {each.kind for each in await kept.found()}
