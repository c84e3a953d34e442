"""What a page costs follows what it shows: rows read for a tenant's pages, and for what is asked on
a timer, with few tenants beside and with many. Counted by the database, not by a clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from api_harness import Api, TestTenant
from described import document
from platform_fixtures import Connection
from rows_read import Read, rows_read
from tenora_platform.forecasts.service import forecast
from tenora_platform.probing import repository as probing
from tenora_platform.registry import repository as registry
from tenora_platform.usage import reading

OTHERS = 400
SLACK = 150
"""Rows more: small tables are read whole (plans, prices), and estimates move."""
LAST_PAGES = 3_000
"""Rows of the newest pages, of which an index by time has no summary yet: they are always read."""
NOW = datetime.now(UTC)

# By tenant of a number: thirty days of usage of ten series, what was done, and what there is.
_FILL = """
SET session_replication_role = replica;
CREATE TEMP TABLE new AS
  SELECT n, lpad(n::text, 26, '0') AS id FROM generate_series(%(first)s::int, %(last)s::int) n;
INSERT INTO tenants (id, name, plan, created_at)
  SELECT 'tenant_' || id, 'other ' || n, 'standard', now() - interval '1 year' FROM new;
INSERT INTO api_keys (id, tenant_id, name, prefix, hash, scopes)
  SELECT 'key_' || id, 'tenant_' || id, 'k', 'p' || n, md5(id)::bytea, '{}' FROM new;
INSERT INTO adapters (id, tenant_id, name)
  SELECT 'adp_' || id || a, 'tenant_' || id, 'a' || a FROM new, generate_series(0, 9) a;
INSERT INTO adapter_versions (id, tenant_id, adapter_id, number, state, bytes, weights_sha256,
    digest, rank, activated_at)
  SELECT 'adv_' || id || a, 'tenant_' || id, 'adp_' || id || a, 1, 'active', 1, '',
         'sha256:' || md5(id || a), 8, now() FROM new, generate_series(0, 9) a;
INSERT INTO adapter_probes (version_id, tenant_id, state, probed_at)
  SELECT 'adv_' || id || a, 'tenant_' || id, 'done', now() FROM new, generate_series(0, 9) a;
INSERT INTO audit_logs (id, tenant_id, chain, seq, at, actor, action, target, details, prev_hash,
    hash)
  SELECT 'audit_' || lpad(s::text, 6, '0') || right(id, 20), 'tenant_' || id, 'tenant_' || id, s,
         now(), 'operator', 'tenant.update', 'tenant_' || id, '{}', '', ''
    FROM new, generate_series(1, 30) s;
INSERT INTO usage_series (tenant_id, key, kind, model, class)
  SELECT 'tenant_' || id, md5(id || a)::bytea, 'chatcmpl', 'm', 'default'
    FROM new, generate_series(0, 4) a;
INSERT INTO usage_hours (tenant_id, hour, series_id, price_version_no, requests, sequences)
  SELECT s.tenant_id, date_trunc('hour', now() - d * interval '1 day', 'UTC'), s.id, 1, 1, 1
    FROM usage_series s JOIN new ON s.tenant_id = 'tenant_' || new.id, generate_series(0, 29) d
   ORDER BY 2 DESC;
INSERT INTO usage_days (tenant_id, day, series_id, price_version_no, requests, sequences)
  SELECT tenant_id, (hour AT TIME ZONE 'UTC')::date, series_id, price_version_no, 1, 1
    FROM usage_hours JOIN new ON tenant_id = 'tenant_' || new.id;
INSERT INTO usage_events (request, event_time, ingested_at, seal, sequence, tenant_no, series_id,
    prompt_tokens, cached_tokens, output_tokens, queue_ms, adapter_load_ms, duration_ms,
    preemptions, cold_loads, finish_reason, price_version_no, amount)
  SELECT (lpad(to_hex((extract(epoch FROM h.hour) * 1000)::bigint), 12, '0')
          || left(md5(h.tenant_id || h.series_id || h.hour), 20))::uuid,
         h.hour, h.hour, 0, 0, t.no, h.series_id, 1, 0, 1, 0, 0, 1, 0, 0, 'stop', 1, 0
    FROM usage_hours h JOIN new ON h.tenant_id = 'tenant_' || new.id
    JOIN tenants t ON t.id = h.tenant_id ORDER BY h.hour;
INSERT INTO events (id, tenant_id, type, once, data)
  SELECT 'evt_' || id || s, 'tenant_' || id, 'x', id || s, '{}' FROM new, generate_series(0, 9) s;
INSERT INTO service_minutes (at, tenant_id, class, finished)
  SELECT date_trunc('minute', now() - m * interval '1 minute'), 'tenant_' || id, 'default', 1
    FROM new, generate_series(0, 20) m;
DROP TABLE new;
RESET session_replication_role;
"""


def fill(owner: Connection, first: int, last: int) -> None:
    for statement in filter(str.strip, _FILL.split(";\n")):
        values = {"first": first, "last": last} if "%(" in statement else None
        owner.execute(statement.encode(), values)
    owner.execute("VACUUM ANALYZE")


@pytest.fixture(scope="module")
async def tenant(api: Api) -> TestTenant:
    made = await api.new_tenant("own", plan="premium")
    for name in ("one", "two", "three"):
        path = f"/admin/v1/tenants/{made.id}/api_keys"
        await api.admin("POST", path, json={"name": name})
    return made


Ask = Callable[[], Awaitable[object]]


def asked(api: Api, tenant: TestTenant) -> dict[str, Ask]:
    """By name: every page of the tenant's that needs no id, and the questions of timers."""

    def page(path: str) -> Ask:
        return lambda: api.call(tenant.key, "GET", path)

    found = {
        path: page(path)
        for path, methods in document()["paths"].items()
        if "get" in methods and path.startswith("/v1/") and "{" not in path and "stream" not in path
    }
    for path in (
        "/v1/audit_logs?limit=10",
        "/v1/audit_logs?action=api_key.*",
        f"/v1/audit_logs?target={tenant.id}",
        "/v1/requests?min_cost=1",
        "/v1/requests?status=failed&start=2020-01-01",
        "/v1/requests?class=default",
        "/v1/requests?sort=-cost",
        "/v1/usage?bucket=hour&group_by=adapter",
        "/v1/timeseries?metric=output_tokens",
        "/v1/timeseries?metric=output_tokens&group_by=adapter",
    ):
        found[path] = page(path)
    for path in ("/admin/v1/engine", "/admin/v1/engine/pages", "/admin/v1/probing"):
        found[path] = lambda path=path: api.admin("GET", path)  # type: ignore[misc]
    found["operator's audit log"] = lambda: api.admin("GET", "/admin/v1/audit_logs?operator=true")
    found["targets"] = lambda: api.admin("GET", "/admin/v1/timeseries?metric=running")
    found["next probe"] = timer(api, lambda session: probing.next_due(session, NOW))
    since = NOW - timedelta(minutes=1)
    found["revoked"] = timer(api, lambda session: registry.revoked_since(session, since))
    found["suspended"] = timer(api, lambda session: registry.suspended_since(session, since))
    return found


def timer(api: Api, ask: Callable[..., Awaitable[object]]) -> Ask:
    async def asks() -> None:
        async with api.state.db.admin_session() as session:
            await ask(session)

    return asks


async def read_by(ask: Ask) -> list[Read]:
    await ask()  # what is asked once and remembered is not the page's
    with rows_read() as reads:
        await ask()
    return reads


async def test_no_page_of_a_tenants_grows_with_others(
    api: Api, tenant: TestTenant, owner: Connection
) -> None:
    fill(owner, 1, 3)
    few = {name: await read_by(ask) for name, ask in asked(api, tenant).items()}
    fill(owner, 4, OTHERS)
    grown = {}
    for name, ask in asked(api, tenant).items():
        reads = await read_by(ask)
        before, after = (sum(each.rows for each in some) for some in (few[name], reads))
        if after > before + SLACK:
            worst = max(reads, key=lambda each: each.rows)
            grown[name] = (before, after, worst.rows, worst.statement[:300])
    assert grown == {}


async def test_sums_over_all_tenants_read_the_time_that_they_are_of(
    api: Api, owner: Connection
) -> None:
    """However long the history is: here of days before there was any."""
    window = reading.Window(
        NOW - timedelta(days=40), NOW - timedelta(days=35), "day", (), None, internal=False
    )
    async with api.state.db.admin_session() as session:
        with rows_read() as reads:
            await reading.sums(session, window)
            await reading.archived_edge(session, window)
    for table in ("usage_days", "usage_hours", "usage_events"):
        assert sum(each.of(table) for each in reads) <= 2 * LAST_PAGES, table
    async with api.state.db.admin_session() as session:
        with rows_read() as reads:
            await forecast(session, None, None, NOW)
    first_use = next(each for each in reads if "min(usage_days.day)" in each.statement)
    assert first_use.rows <= 1
