"""Usage events by month, each with its price in the row and sealed; occupancy of memory and storage
beside them. Moves what older installations have, rated lines and all.

Revision: 0017, after 0016
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

from tenora_platform.isolation import (
    enable_tenant_isolation,
    only_the_operator_writes,
    roles,
    secret,
)
from tenora_platform.usage.moving import move_events, move_letters

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_READ = ("tenants", "adapter_versions", "price_versions", "prices")
_WRITTEN = ("usage_series", "usage_hours", "usage_days", "ledger_due")
_OLD = ("usage_events", "rated_lines", "unrated_events")


def upgrade() -> None:
    for table in _OLD:
        op.rename_table(table, f"old_{table}")
    for index in ("pk_usage_events", "ix_usage_events_tenant_time", "pk_unrated_events"):
        op.execute(f"ALTER INDEX {index} RENAME TO old_{index}")
    _create_events()
    _create_occupancy()
    _create_unrated()
    _create_months()
    op.add_column("usage_dead_letters", sa.Column("request", sa.Uuid))
    op.add_column("usage_dead_letters", sa.Column("sequence", sa.Integer))
    with _unbound(*_READ, *_WRITTEN, *(f"old_{table}" for table in _OLD)):
        _move()
    for table in ("unrated_events", "rated_lines", "usage_events"):
        op.drop_table(f"old_{table}")
    _isolate()


@contextmanager
def _unbound(*tables: str) -> Iterator[None]:
    """Row-level security does not bind the owner meanwhile; nobody else sees what is not
    committed."""
    for table in tables:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    yield
    for table in tables:
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def _rating() -> list[sa.Column[object] | sa.CheckConstraint]:
    return [
        sa.Column("price_version_no", sa.Integer),  # NULL: waits for one; 0: nothing to price
        sa.Column("amount", sa.Numeric(38, 12)),
        sa.Column("positions", ARRAY(sa.BigInteger)),
        sa.CheckConstraint(
            "(price_version_no IS NULL) = (amount IS NULL) AND amount >= 0 "
            "AND (positions IS NULL OR price_version_no IS NOT NULL)",
            name="rating",
        ),
    ]


def _create_events() -> None:
    # Wide columns first: nothing is lost to alignment. Series and tenant are not foreign keys: each
    # month that goes would lock both tables, and the seal covers them.
    op.create_table(
        "usage_events",
        sa.Column("request", sa.Uuid, nullable=False),
        sa.Column("event_time", _TIME, nullable=False),
        sa.Column("ingested_at", _TIME, nullable=False),
        sa.Column("seal", sa.BigInteger, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("tenant_no", sa.Integer, nullable=False),
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.Integer, nullable=False),
        sa.Column("cached_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("max_tokens", sa.Integer),
        sa.Column("queue_ms", sa.REAL, nullable=False),
        sa.Column("adapter_load_ms", sa.REAL, nullable=False),
        sa.Column("first_token_ms", sa.REAL),
        sa.Column("duration_ms", sa.REAL, nullable=False),
        sa.Column("preemptions", sa.Integer, nullable=False),
        sa.Column("cold_loads", sa.SmallInteger, nullable=False),
        sa.Column("finish_reason", sa.Text, nullable=False),
        sa.Column("residency", sa.Text),
        sa.Column("x_request_id", sa.Text),
        *_rating(),
        sa.PrimaryKeyConstraint("request", "sequence"),
        sa.CheckConstraint(
            "prompt_tokens >= 0 AND output_tokens >= 0 AND cold_loads >= 0 AND sequence >= 0 "
            "AND cached_tokens BETWEEN 0 AND prompt_tokens",
            name="meters",
        ),
        postgresql_partition_by="RANGE (request)",
    )
    op.create_index("ix_usage_events_tenant_time", "usage_events", ["tenant_no", "event_time"])
    op.execute(
        """
        CREATE FUNCTION rate_once() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
          rating text[] := '{price_version_no,amount,positions,seal}';
        BEGIN
          IF TG_OP = 'UPDATE' THEN
            IF OLD.price_version_no IS NULL AND NEW.price_version_no IS NOT NULL
               AND to_jsonb(NEW) - rating = to_jsonb(OLD) - rating THEN
              RETURN NEW;
            END IF;
          END IF;
          RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )


def _create_occupancy() -> None:
    op.create_table(
        "occupancy_events",
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("tenant_no", sa.Integer, nullable=False),
        sa.Column("series_id", sa.Integer, sa.ForeignKey("usage_series.id"), nullable=False),
        sa.Column("meter", sa.Text, nullable=False),
        sa.Column("quantity", sa.BigInteger, nullable=False),
        sa.Column("begins", _TIME, nullable=False),
        sa.Column("ends", _TIME, nullable=False),
        sa.Column("ingested_at", _TIME, nullable=False),
        *_rating(),
        sa.Column("seal", sa.BigInteger, nullable=False),
        sa.CheckConstraint("quantity > 0 AND ends >= begins", name="quantity"),
    )
    op.create_index("ix_occupancy_events_tenant_time", "occupancy_events", ["tenant_no", "ends"])


def _create_unrated() -> None:
    op.create_table(
        "unrated_events",
        sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("request", sa.Uuid),
        sa.Column("sequence", sa.Integer),
        sa.Column("occupancy_id", sa.Uuid, sa.ForeignKey("occupancy_events.id"), unique=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("request", "sequence"),
        sa.CheckConstraint(
            "(request IS NULL) = (sequence IS NULL) AND num_nonnulls(request, occupancy_id) = 1",
            name="event",
        ),
    )


def _create_months() -> None:
    """Requests' ids begin with their time in ms, so a month is a range of them. Ids that are not of
    our making have none, and a partition of their own."""
    schema, admin = roles().schema, roles().admin_role
    safe = f"SET search_path = {schema}, pg_temp"
    op.execute(
        f"""
        CREATE FUNCTION usage_bound(moment date) RETURNS uuid LANGUAGE sql IMMUTABLE {safe} AS $$
          SELECT rpad(lpad(to_hex((moment - date '1970-01-01')::bigint * 86400000), 12, '0'),
                      32, '0')::uuid
        $$
        """
    )
    op.execute(
        f"""
        CREATE FUNCTION create_usage_month(of date) RETURNS boolean
        LANGUAGE plpgsql SECURITY DEFINER {safe} AS $$
        DECLARE
          month date := date_trunc('month', of::timestamp);
          part text := 'usage_events_' || to_char(month, 'YYYY_MM');
          low uuid := usage_bound(month);
          high uuid := usage_bound((month + interval '1 month')::date);
        BEGIN
          IF to_regclass(part) IS NOT NULL THEN
            RETURN false;
          END IF;
          EXECUTE format('CREATE TABLE %I (LIKE usage_events INCLUDING CONSTRAINTS)', part);
          -- From a clock that was far ahead.
          IF EXISTS (SELECT FROM usage_events_default WHERE request >= low AND request < high) THEN
            ALTER TABLE usage_events_default DISABLE TRIGGER USER;
            EXECUTE format('WITH moved AS (DELETE FROM usage_events_default '
              'WHERE request >= $1 AND request < $2 RETURNING *) '
              'INSERT INTO %I SELECT * FROM moved', part) USING low, high;
            ALTER TABLE usage_events_default ENABLE TRIGGER USER;
          END IF;
          EXECUTE format(
            'ALTER TABLE usage_events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
            part, low, high);
          EXECUTE format('CREATE TRIGGER kept BEFORE TRUNCATE ON %I '
            'FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', part);
          RETURN true;
        END $$
        """
    )
    op.execute("REVOKE EXECUTE ON FUNCTION create_usage_month(date) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION create_usage_month(date) TO {admin}")
    op.execute(
        "CREATE TABLE usage_events_other PARTITION OF usage_events FOR VALUES "
        "FROM (MINVALUE) TO ('00000000-0001-0000-0000-000000000000')"
    )
    op.execute("CREATE TABLE usage_events_default PARTITION OF usage_events DEFAULT")
    op.execute(
        "SELECT create_usage_month((date_trunc('month', now() AT TIME ZONE 'UTC') "
        "+ ahead * interval '1 month')::date) FROM generate_series(-1, 2) AS ahead"
    )


def _move() -> None:
    op.execute(
        "SELECT create_usage_month(month::date) FROM ("
        "SELECT DISTINCT date_trunc('month', arrival_time - late, 'UTC') AT TIME ZONE 'UTC' "
        "AS month FROM old_usage_events, (VALUES (interval '0'), (interval '1 hour')) AS l (late) "
        "WHERE arrival_time < now()) AS months"
    )
    connection = op.get_bind()
    move_events(connection, secret())
    op.execute("ALTER TABLE usage_dead_letters DISABLE TRIGGER append_only")
    move_letters(connection)
    op.execute("ALTER TABLE usage_dead_letters ENABLE TRIGGER append_only")
    _sum_up()


def _sum_up() -> None:
    op.execute(
        """
        INSERT INTO usage_hours
          (tenant_id, hour, series_id, meter, price_version_no, quantity, amount)
        SELECT t.id, date_trunc('hour', e.event_time, 'UTC'), e.series_id, m.meter,
               coalesce(e.price_version_no, 0), sum(m.quantity),
               coalesce(sum(m.quantity * p.per_million * 0.000001), 0)
        FROM usage_events e
        JOIN tenants t ON t.no = e.tenant_no
        CROSS JOIN LATERAL (VALUES
          ('sequences', 1), ('requests', (e.sequence = 0)::int),
          ('unrated', (e.price_version_no IS NULL)::int),
          ('charged_nanos', ceil(coalesce(e.amount, 0) * 1000000000)::bigint),
          ('uncached_prefill', e.prompt_tokens - e.cached_tokens),
          ('cached_prefill', e.cached_tokens), ('output', e.output_tokens)
        ) AS m (meter, quantity)
        LEFT JOIN price_versions v ON v.no = e.price_version_no
        LEFT JOIN prices p ON p.price_version_id = v.id AND p.meter = m.meter
          AND p.class = '' AND p.from_quantity = 0
        WHERE m.quantity <> 0
        GROUP BY 1, 2, 3, 4, 5
        """
    )
    op.execute(
        """
        INSERT INTO usage_days
          (tenant_id, day, series_id, meter, price_version_no, quantity, amount)
        SELECT tenant_id, (hour AT TIME ZONE 'UTC')::date, series_id, meter, price_version_no,
               sum(quantity), sum(amount)
        FROM usage_hours GROUP BY 1, 2, 3, 4, 5
        """
    )
    op.execute(
        "INSERT INTO ledger_due (tenant_id, day) SELECT DISTINCT tenant_id, day FROM usage_days"
    )
    for table in ("usage_hours", "usage_days"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 80)")  # they are changed all day


def _isolate() -> None:
    admin = roles().admin_role
    once = "price_version_no, amount, positions, seal"
    for table in ("usage_events", "occupancy_events"):
        enable_tenant_isolation(table, column="tenant_no")
        only_the_operator_writes(table)
        op.execute(f"REVOKE UPDATE ON {table} FROM {admin}")
        op.execute(f"GRANT UPDATE ({once}) ON {table} TO {admin}")
        op.execute(
            f"CREATE TRIGGER rated_once BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION rate_once()"
        )
    for table in ("usage_events_other", "usage_events_default", "occupancy_events"):
        op.execute(
            f"CREATE TRIGGER kept BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    enable_tenant_isolation("unrated_events")
    only_the_operator_writes("unrated_events", deletes=True)
