"""Days that moved once they were over: what marks them, which run finds what, and that a mark goes
only with a run that ended. What an hourly run reads does not grow with the days before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from api_harness import Api, TestTenant
from books import by_hand, reconcile, record, store
from platform_fixtures import Connection, plain_url
from rows_read import visited
from tenora_platform.bootstrap import database_urls
from tenora_platform.db import libpq_url
from tenora_platform.ids import new_id
from tenora_platform.installation import DEFAULT
from tenora_platform.ledger.poster import Poster
from tenora_platform.reconciliation import repository
from tenora_platform.reconciliation.proof import prove
from tenora_platform.reconciliation.reading import Snapshot
from tenora_platform.reconciliation.service import Reconciler
from tenora_platform.reconciliation.task import Result, Scope, Task

NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
OLD = (NOON - timedelta(days=9)).date()
_COUNTED = "sequences, prompt_tokens, cached_tokens, output_tokens, cold_loads"


def noon(days_ago: int) -> float:
    return (NOON - timedelta(days=days_ago)).timestamp()


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    """Whose old day was found right."""
    made = await api.new_tenant("moves")
    await store(api, [record(made.id, noon(9) + hour * 3600) for hour in range(3)])
    await Poster(api.state.db, api.state.ledger).run_once()
    assert (await reconcile(api))["agrees"] is True
    return made


@pytest.fixture
def task(api: Api, database_url: str) -> Task:
    urls = database_urls(database_url, api.state.secret, DEFAULT)
    return Task(
        database_url=libpq_url(urls.admin),
        secret=api.state.secret.root,
        object_store=api.state.settings.object_store_url,
        scope=Scope(mode="recent"),
    )


async def close(api: Api, result: Result) -> None:
    async with api.state.db.admin_session() as session:
        await repository.keep_settled(session, result.settled)


CHANGES = {
    "hours": "UPDATE usage_hours SET output = output + 1 WHERE {hours}",
    "days": "UPDATE usage_days SET output = output + 1 WHERE {days}",
    "no hours": "DELETE FROM usage_hours WHERE {hours}",
    "no days": "DELETE FROM usage_days WHERE {days}",
    "another day": "UPDATE usage_days SET day = day + 400 WHERE {days}",
    "engine": f"INSERT INTO engine_totals (engine, tenant_id, day, {_COUNTED}) "
    "SELECT 'e', tenant_id, day, 9, 0, 0, 0, 0 FROM usage_days WHERE {days} LIMIT 1",
    "ledger": "INSERT INTO ledger_transactions (id, tenant_id, seq, kind, reference, currency, day,"
    " created_at, prev_hash, hash) SELECT 'x', tenant_id, 99, 'usage', 'x', 'USD', day, now(), '',"
    " '' FROM usage_days WHERE {days} LIMIT 1",
}


@pytest.mark.parametrize("change", CHANGES)
async def test_whatever_moves_an_old_day_marks_it(
    owner: Connection, tenant: TestTenant, change: str
) -> None:
    mine = f"tenant_id = '{tenant.id}' AND"
    places = {
        "days": f"{mine} day = '{OLD}'",
        "hours": f"{mine} (hour AT TIME ZONE 'UTC')::date = '{OLD}'",
    }
    with owner.transaction(force_rollback=True):
        owner.execute(CHANGES[change].format(**places).encode())
        marks = owner.execute("SELECT DISTINCT tenant, day FROM moved_days").fetchall()
        assert marks == [(tenant.id, OLD)]


async def test_a_day_that_is_not_over_needs_no_mark(
    api: Api, owner: Connection, tenant: TestTenant
) -> None:
    await store(api, [record(tenant.id, datetime.now(UTC).timestamp())])
    assert owner.execute("SELECT count(*) FROM moved_days").fetchone() == (0,)


async def test_a_day_that_is_wrong_is_looked_at_until_it_is_right(
    api: Api, database_url: str, tenant: TestTenant
) -> None:
    """Changed so that no trigger knew: the full run finds it, and the next ones look again."""
    change = b"UPDATE usage_days SET output = output + %s WHERE tenant_id = %s AND day = %s"
    with by_hand(plain_url(database_url)) as hand:
        hand.execute(change, [1, tenant.id, OLD])
        assert (await reconcile(api, mode="recent"))["agrees"] is True
        for mode in ("full", "recent", "recent"):
            run = await reconcile(api, mode=mode)
            assert set(run["differences"]) == {"day_wrong"}, mode
        hand.execute(change, [-1, tenant.id, OLD])
    for is_old_looked_at in (True, False):
        run = await reconcile(api, mode="recent")
        assert run["agrees"] is True
        assert (run["looked"]["events"] > 1) is is_old_looked_at


async def test_a_mark_stays_until_a_run_that_saw_it_has_ended(
    api: Api, tenant: TestTenant, task: Task
) -> None:
    """A run that was cut off clears nothing, and one that ends nothing that came meanwhile, should
    two of them look at once."""
    before = prove(task).looked.events
    await store(api, [record(tenant.id, noon(9) + 5 * 3600)])
    cut_off, ended = prove(task), prove(task)
    assert cut_off.looked.events == ended.looked.events == before + 4
    await store(api, [record(tenant.id, noon(9) + 6 * 3600)])
    await close(api, ended)
    later = prove(task)
    assert later.looked.events == before + 5
    await close(api, cut_off)
    await close(api, later)
    assert prove(task).looked.events == before


async def test_a_day_is_looked_at_after_its_end_even_if_no_run_came_for_long(
    api: Api, owner: Connection, tenant: TestTenant, task: Task
) -> None:
    """The last run that settled days was ten days ago: whatever came after is looked at."""
    await reconcile(api)
    before = prove(task).looked.events
    kept = owner.execute("SELECT id, settled_through FROM reconciliations").fetchall()
    try:
        owner.execute("UPDATE reconciliations SET settled_through = %s", [OLD - timedelta(days=1)])
        assert prove(task).looked.events > before
        owner.execute("UPDATE reconciliations SET settled_through = NULL")
        assert prove(task).looked.events > before
    finally:
        for run, through in kept:
            owner.execute(
                "UPDATE reconciliations SET settled_through = %s WHERE id = %s", [through, run]
            )


async def test_only_a_run_over_everything_settles(api: Api, owner: Connection) -> None:
    bounded = await reconcile(api, mode="recent", first=str(OLD))
    whole = await reconcile(api, mode="recent")

    def through(run: dict[str, Any]) -> date | None:
        query = "SELECT settled_through FROM reconciliations WHERE id = %s"
        row = owner.execute(query, [run["id"]]).fetchone()
        assert row is not None
        found: date | None = row[0]
        return found

    assert through(bounded) is None
    assert through(whole) == (NOON - timedelta(days=2)).date()


# Found right long ago: days of another tenant's usage, with their postings and engines' totals.
_HISTORY = """
INSERT INTO usage_series (tenant_id, key, kind, model, class)
  SELECT %(tenant)s, md5(%(first)s::text || n)::bytea, 'chatcmpl', 'm', 'default'
    FROM generate_series(1, 20) n;
INSERT INTO usage_hours (tenant_id, hour, series_id, price_version_no, requests, sequences)
  SELECT tenant_id, date_trunc('hour', now(), 'UTC') - d * interval '1 day', id, 0, 1, 1
    FROM usage_series, generate_series(%(first)s::int, %(last)s::int) d
   WHERE tenant_id = %(tenant)s ORDER BY 2;
INSERT INTO usage_days (tenant_id, day, series_id, price_version_no, requests, sequences)
  SELECT tenant_id, (hour AT TIME ZONE 'UTC')::date, series_id, 0, 1, 1 FROM usage_hours
   WHERE tenant_id = %(tenant)s ON CONFLICT DO NOTHING;
INSERT INTO usage_events (request, event_time, ingested_at, seal, sequence, tenant_no, series_id,
    prompt_tokens, cached_tokens, output_tokens, queue_ms, adapter_load_ms, duration_ms,
    preemptions, cold_loads, finish_reason, price_version_no, amount)
  SELECT (lpad(to_hex((extract(epoch FROM h.hour) * 1000)::bigint), 12, '0')
          || left(md5(h.series_id::text || h.hour), 20))::uuid,
         h.hour, h.hour, 0, 0, t.no, h.series_id, 1, 0, 1, 0, 0, 1, 0, 0, 'stop', 0, 0
    FROM usage_hours h JOIN tenants t ON t.id = h.tenant_id WHERE t.id = %(tenant)s ORDER BY h.hour
    ON CONFLICT DO NOTHING;
INSERT INTO engine_totals (engine, tenant_id, day, sequences, prompt_tokens, cached_tokens,
    output_tokens, cold_loads)
  SELECT 'e' || n, tenant_id, day, 20, 20, 0, 20, 0 FROM usage_days, generate_series(1, 5) n
   WHERE tenant_id = %(tenant)s ON CONFLICT DO NOTHING;
INSERT INTO ledger_transactions (id, tenant_id, seq, kind, reference, currency, day, created_at,
    prev_hash, hash)
  SELECT md5(tenant_id || day), tenant_id, 10000 + (now()::date - day), 'usage', day::text, 'USD',
         day, now(), '', '' FROM (SELECT DISTINCT tenant_id, day FROM usage_days) d
   WHERE tenant_id = %(tenant)s ON CONFLICT DO NOTHING;
"""
SLACK = 300
LAST_PAGES = 3_000
"""Rows of the newest pages, of which an index by time has no summary yet: they are always read."""


def fill(hand: Connection, tenant_id: str, first: int, last: int) -> None:
    for statement in filter(str.strip, _HISTORY.split(";\n")):
        values = {"tenant": tenant_id, "first": first, "last": last}
        hand.execute(statement.encode(), values)
    hand.execute("VACUUM ANALYZE")


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Rows that a run's queries visit meanwhile, by query."""
    found: dict[str, int] = {}

    def explain(self: Snapshot, query: Any, values: Any) -> None:
        told = self._link.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".encode(), values)
        row = told.fetchone()
        assert row is not None
        found[query] = found.get(query, 0) + visited(row[0][0]["Plan"])

    with monkeypatch.context() as patched:
        for name in ("one", "all", "stream"):
            real = getattr(Snapshot, name)

            def asked(self: Snapshot, query: Any, values: Any = (), real: Any = real) -> Any:
                explain(self, query, values)
                return real(self, query, values)

            patched.setattr(Snapshot, name, asked)
        yield found


def _by_time(query: str) -> bool:
    return "timestamptz" in query and "unnest" not in query


async def test_what_an_hourly_run_reads_does_not_grow_with_history(
    api: Api,
    tenant: TestTenant,
    task: Task,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await store(api, [record(tenant.id, noon(9) + 7 * 3600)])  # one old day has moved
    other = await api.new_tenant("has a history")
    reads = []
    with by_hand(plain_url(database_url)) as hand:
        for first, last in ((20, 21), (22, 400)):
            fill(hand, other.id, first, last)
            with counted(monkeypatch) as found:
                result = prove(task)
            assert result.differences == {}, result.named
            assert result.looked.events >= 4
            reads.append(found)
    few, many = reads
    grown = {
        query[:200]: (few.get(query, 0), rows)
        for query, rows in many.items()
        if rows > few.get(query, 0) + (LAST_PAGES if _by_time(query) else SLACK)
    }
    assert grown == {}


async def test_what_a_full_run_found_stands_until_the_next_one(api: Api, owner: Connection) -> None:
    """An hourly run after it, which does not look at all of it, would have silenced the alarm."""
    reconciler, said = Reconciler(api.state), []
    for hour, (mode, found) in enumerate((("full", 3), ("recent", 0), ("full", 0)), start=1):
        owner.execute(
            "INSERT INTO reconciliations (id, mode, state, asked_by, finished_at, difference_count)"
            " VALUES (%s, %s, 'done', 'a test', now() + make_interval(hours => %s), %s)",
            [new_id("run"), mode, hour, found],
        )
        reconciler._told_s = 0.0
        await reconciler._tell()
        assert api.state.proof.told is not None
        said.append(api.state.proof.told.differences)
    owner.execute("DELETE FROM reconciliations WHERE asked_by = 'a test'")
    assert said == [3, 3, 0]
