"""Migrations of a database whose owner is no superuser, as an operator's own server has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from alembic import command
from sqlalchemy import create_engine, make_url

from platform_fixtures import Servers, plain_url, with_database
from tenora_platform.bootstrap import _alembic, database_urls, prepare_database
from tenora_platform.installation import DEFAULT
from tenora_platform.usage.ids import event_of, event_text
from tenora_platform.usage.seal import EVENT_COLUMNS, Seals


@pytest.fixture
def owned_url(servers: Servers) -> str:
    """An empty database of a role that row-level security binds."""
    name = f"owned_{next(servers.numbers)}"
    servers.execute("CREATE ROLE {} LOGIN CREATEROLE PASSWORD 'secret'", name)
    servers.execute("CREATE DATABASE {} OWNER {}", name, name)
    url = make_url(with_database(servers.postgres_url, name))
    owner = url.set(username=name, password="secret")
    return owner.render_as_string(hide_password=False)


def test_the_order_of_completed_uploads_is_kept(servers: Servers, owned_url: str) -> None:
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0004")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(
            """
            INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free');
            INSERT INTO uploads (id, tenant_id, status, bytes, expires_at) VALUES
              ('done', 't', 'completed', 2, now()), ('open', 't', 'pending', 2, now());
            INSERT INTO upload_parts (id, tenant_id, upload_id, bytes, sha256, position) VALUES
              ('b', 't', 'done', 1, '', 0), ('a', 't', 'done', 1, '', 1),
              ('c', 't', 'open', 1, '', NULL);
            """
        )
        prepare_database(urls)
        kept = superuser.execute("SELECT id, part_ids FROM uploads ORDER BY id").fetchall()
        assert kept == [("done", ["b", "a"]), ("open", None)]
        unforced = superuser.execute(
            "SELECT relname FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        ).fetchall()
        assert unforced == []


_OLD_USAGE = """
INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free'), ('u', 'u', 'free');
INSERT INTO price_versions (id, plan, currency, effective_from)
  VALUES ('dear', 'premium', 'EUR', '2026-01-01');
INSERT INTO prices (price_version_id, meter, per_million) VALUES
  ('dear', 'uncached_prefill', '3'), ('dear', 'cached_prefill', '1'),
  ('dear', 'output', '7.000001');
INSERT INTO usage_events (event_id, tenant_id, request_id, sequence, api_key_id, model, plan,
  prompt_tokens, cached_tokens, output_tokens, tier, finish_reason, residency, queue_ms,
  adapter_load_ms, arrival_time, first_token_time, event_time, x_request_id) VALUES
  ('chatcmpl_01m6a6fsd8000000000000000a:0', 't', 'chatcmpl_01m6a6fsd8000000000000000a', 0, 'k',
   'm', 'premium', 30, 10, 4, 'priority', 'stop', 'host', 1.5, 0.25, '2026-10-31T23:59:59.5Z',
   '2026-10-31T23:59:59.75Z', '2026-11-01T00:00:01Z', 'mine'),
  ('chatcmpl_01m6a6fsd8000000000000000a:1', 't', 'chatcmpl_01m6a6fsd8000000000000000a', 1, 'k',
   'm', 'premium', 0, 0, 5, 'priority', 'length', NULL, 1.5, 0, '2026-10-31T23:59:59.5Z',
   NULL, '2026-11-01T00:00:02Z', NULL),
  ('cmpl_01m6a6fsd8000000000000000b-1:0', 'u', 'cmpl_01m6a6fsd8000000000000000b', 0, NULL,
   'm', NULL, 8, 0, 3, 'flex', 'stop', NULL, 0, 0, '2019-03-01Z', NULL,
   '2019-03-01T00:00:01Z', NULL),
  ('cmpl_01m6a6fsd8000000000000000b-2:0', 'u', 'cmpl_01m6a6fsd8000000000000000b', 0, NULL,
   'm', NULL, 0, 0, 0, 'flex', 'abort', NULL, 0, 0, '2026-11-02Z', NULL,
   '2026-11-02T00:00:01Z', NULL);
INSERT INTO rated_lines (event_id, meter, tenant_id, quantity, per_million, price_version_id,
  currency, amount) VALUES
  ('chatcmpl_01m6a6fsd8000000000000000a:0', 'uncached_prefill', 't', 20, 3, 'dear', 'EUR', 0.00006),
  ('chatcmpl_01m6a6fsd8000000000000000a:0', 'cached_prefill', 't', 10, 1, 'dear', 'EUR', 0.00001),
  ('chatcmpl_01m6a6fsd8000000000000000a:0', 'output', 't', 4, 7.000001, 'dear', 'EUR',
   0.000028000004),
  ('chatcmpl_01m6a6fsd8000000000000000a:1', 'output', 't', 5, 7.000001, 'dear', 'EUR',
   0.000035000005);
INSERT INTO unrated_events (event_id, tenant_id, reason, since) VALUES
  ('cmpl_01m6a6fsd8000000000000000b-1:0', 'u', 'no price then', '2019-03-02Z');
INSERT INTO usage_dead_letters (event_id, record, reason) VALUES
  ('chatcmpl_01m6a6fsd8000000000000000a-3:1', '{"request_id": "x", "index": 1, "context":
    {"request_id": "chatcmpl_01m6a6fsd8000000000000000a", "first_sequence": "6"}}', 'bad'),
  ('nothing', '{}', 'bad');
"""


def test_usage_of_older_installations_is_moved(servers: Servers, owned_url: str) -> None:
    """Events with their rated lines, those that wait, and dead letters; sealed, summed, and due."""
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0011")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(_OLD_USAGE)
        prepare_database(urls)
        seals = Seals(servers.secret)
        columns = ", ".join(f"e.{name}" for name in EVENT_COLUMNS)
        rows = superuser.execute(
            f"SELECT e.tableoid::regclass::text, s.kind, s.tenant_id, s.class, {columns}, e.seal "
            "FROM usage_events e JOIN usage_series s ON s.id = e.series_id "
            "ORDER BY e.event_time, e.sequence"
        ).fetchall()
        assert all(seals.event(row[4:-1]) == row[-1] for row in rows)
        named = [dict(zip(("part", "kind", "of", "class", *EVENT_COLUMNS), r)) for r in rows]  # noqa: B905
        waiting, first, second, nothing = named
        ids = [event_text(row["kind"], row["request"], row["sequence"]) for row in named]
        assert ids[1:3] == [f"chatcmpl_01m6a6fsd8000000000000000a:{n}" for n in (0, 1)]
        assert event_of("cmpl_01m6a6fsd8000000000000000b-1:0").text == ids[0]
        assert [row["part"] for row in named] == [
            "usage_events_other", "usage_events_2026_10", "usage_events_2026_10",
            "usage_events_other",
        ]  # fmt: skip
        assert (first["of"], first["class"], first["x_request_id"]) == ("t", "priority", "mine")
        assert (first["duration_ms"], first["first_token_ms"]) == (1500.0, 250.0)
        assert (second["first_token_ms"], second["x_request_id"]) == (None, "")
        dear = superuser.execute("SELECT no FROM price_versions WHERE id = 'dear'").fetchone()
        assert dear is not None
        assert (first["price_version_no"], first["amount"]) == (dear[0], Decimal("0.000098000004"))
        assert (waiting["price_version_no"], waiting["amount"]) == (None, None)
        assert (nothing["price_version_no"], nothing["amount"]) == (0, 0)
        assert superuser.execute(
            "SELECT tenant_id, request, sequence, reason, since FROM unrated_events"
        ).fetchall() == [
            ("u", waiting["request"], 0, "no price then", datetime(2019, 3, 2, tzinfo=UTC))
        ]
        days = superuser.execute(
            "SELECT meter, quantity, amount FROM usage_day_meters "
            "WHERE tenant_id = 't' AND day = '2026-11-01' ORDER BY meter"
        ).fetchall()
        assert days == [
            ("cached_prefill", 10, Decimal("0.00001")),
            ("charged_nanos", 98001 + 35001, 0),
            ("output", 9, Decimal("0.000063000009")),
            ("requests", 1, 0),
            ("sequences", 2, 0),
            ("uncached_prefill", 20, Decimal("0.00006")),
        ]
        hours = superuser.execute(
            "SELECT hour, meter, price_version_no, quantity FROM usage_hour_meters "
            "WHERE tenant_id = 'u' ORDER BY hour, meter"
        ).fetchall()
        then = datetime(2019, 3, 1, tzinfo=UTC)
        assert hours[:5] == [
            (then, meter, 0, quantity)
            for meter, quantity in (
                ("output", 3),
                ("requests", 1),
                ("sequences", 1),
                ("uncached_prefill", 8),
                ("unrated", 1),
            )
        ]
        assert [row[1] for row in hours[5:]] == ["requests", "sequences"]
        due = "SELECT tenant_id, day::text FROM ledger_due ORDER BY 1, 2"
        assert superuser.execute(due).fetchall() == [
            ("t", "2026-11-01"),
            ("u", "2019-03-01"),
            ("u", "2026-11-02"),
        ]
        letters = superuser.execute(
            "SELECT request, sequence FROM usage_dead_letters ORDER BY event_id"
        ).fetchall()
        assert letters == [(first["request"], 7), (None, None)]


def test_versions_get_room_for_a_draft_layer_and_lose_it(servers: Servers, owned_url: str) -> None:
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0037")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(
            """
            INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free');
            INSERT INTO adapters (id, tenant_id, name) VALUES ('a', 't', 'a');
            INSERT INTO adapter_versions (id, tenant_id, adapter_id, number, state, bytes,
              weights_sha256) VALUES ('v', 't', 'a', 1, 'quarantined', 7, '');
            """
        )
        prepare_database(urls)
        layers = "SELECT bytes, draft_layer_digest, draft_layer_bytes FROM adapter_versions"
        assert superuser.execute(layers).fetchall() == [(7, None, None)]
        with pytest.raises(psycopg.errors.CheckViolation):
            superuser.execute("UPDATE adapter_versions SET draft_layer_bytes = 3")
        engine = create_engine(urls.owner)
        with engine.connect() as connection:
            command.downgrade(_alembic(connection, urls), "0037")
        engine.dispose()
        assert superuser.execute("SELECT bytes FROM adapter_versions").fetchall() == [(7,)]
        with pytest.raises(psycopg.errors.UndefinedColumn):
            superuser.execute(layers)
        prepare_database(urls)
        assert superuser.execute(layers).fetchall() == [(7, None, None)]


_PRESET = [("price_default", Decimal("0.4"))]


def prices_of(link: psycopg.Connection[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return link.execute(
        "SELECT v.id, per_million FROM price_versions v JOIN prices ON price_version_id = v.id "
        "WHERE meter = 'output' AND class = '' ORDER BY v.id"
    ).fetchall()


_TENANT = "INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free')"
_NO = "(SELECT no FROM price_versions WHERE id = 'price_default')"
_SERIES = (
    "INSERT INTO usage_series (tenant_id, key, kind, model, class) "
    "VALUES ('t', 'x', 'chatcmpl', 'm', 'default')"
)
_CHARGED = (
    f"{_TENANT}; {_SERIES}; INSERT INTO usage_days (tenant_id, day, series_id, price_version_no, "
    f"output) SELECT 't', '2026-11-01', id, {_NO}, 1 FROM usage_series"
)
_TIERED = (
    f"{_TENANT}; INSERT INTO usage_volumes (tenant_id, month, price_version_no, model, class, "
    f"meter, quantity) VALUES ('t', '2026-11-01', {_NO}, 'm', '', 'output', 1)"
)
_SET = (
    "INSERT INTO price_versions (id, plan, currency, effective_from) "
    "VALUES ('mine', 'premium', 'EUR', '2026-01-01')"
)


@pytest.mark.parametrize("before", [_CHARGED, _TIERED, _SET, f"{_TENANT}; {_SET}"])
def test_prices_stay_where_they_were_used_or_set(
    servers: Servers, owned_url: str, before: str
) -> None:
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0039")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(before)
        prepare_database(urls)
        assert prices_of(superuser) == _PRESET


@pytest.mark.parametrize("before", ["SELECT 1", _TENANT, f"{_TENANT}; {_SERIES}"])
def test_prices_that_nobody_set_or_used_are_taken_back(
    servers: Servers, owned_url: str, before: str
) -> None:
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0039")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute(before)
        prepare_database(urls)
        assert prices_of(superuser) == [("price_free", Decimal(0))]
        meters = superuser.execute("SELECT count(*), sum(per_million) FROM prices").fetchall()
        assert meters == [(7, Decimal(0))]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            superuser.execute("DELETE FROM prices")
        unforced = "SELECT 1 FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity"
        assert superuser.execute(unforced).fetchall() == []


def test_an_index_is_made_beside_writers(servers: Servers, owned_url: str) -> None:
    """One that was cut off is made anew, and who waits for the turn to migrate is waited for by
    nobody."""
    urls = database_urls(owned_url, servers.secret, DEFAULT)
    prepare_database(urls, "0058")
    as_superuser = plain_url(with_database(servers.postgres_url, str(urls.owner.database)))
    with psycopg.connect(as_superuser, autocommit=True) as superuser:
        superuser.execute("CREATE INDEX ix_tenants_plan ON tenants (plan)")
        superuser.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_tenants_plan'::regclass"
        )
        writer = psycopg.connect(as_superuser)
        writer.execute("INSERT INTO tenants (id, name, plan) VALUES ('t', 't', 'free')")
        with ThreadPoolExecutor() as pool:
            prepared = [pool.submit(prepare_database, urls) for _ in range(2)]
            writer.execute("INSERT INTO tenants (id, name, plan) VALUES ('u', 'u', 'free')")
            writer.commit()
            for each in prepared:
                each.result(timeout=60)
        writer.close()
        unfinished = superuser.execute("SELECT count(*) FROM pg_index WHERE NOT indisvalid")
        assert unfinished.fetchone() == (0,)
        superuser.execute("SELECT create_usage_month('2031-01-01')")
        missing = superuser.execute(
            "SELECT count(*) FROM pg_inherits p WHERE inhparent = 'usage_events'::regclass AND 2 > "
            "(SELECT count(*) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indexrelid "
            "  WHERE i.indrelid = p.inhrelid AND h.inhparent IN ("
            "    'ix_usage_events_time'::regclass, 'ix_usage_events_more_sequences'::regclass))"
        )
        assert missing.fetchone() == (0,)
