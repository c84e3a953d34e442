"""Sums of usage, and what invoices took of them, with one row for all meters of a series at one
price instead of a row for each meter. Views have the rows by meter.

Revision: 0022, after 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes, roles

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_MONEY = sa.Numeric(38, 12)
_COUNTS = ("requests", "sequences", "unrated", "charged_nanos")
_METERS = (
    "uncached_prefill",
    "cached_prefill",
    "output",
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
)


def upgrade() -> None:
    for table, begin, of in (("usage_hours", "hour", _TIME), ("usage_days", "day", sa.Date())):
        _rename(table)
        key = ("tenant_id", begin, "series_id", "price_version_no")
        op.create_table(
            table,
            sa.Column(begin, of, nullable=False),  # UTC
            *_measures((*_COUNTS, *_METERS)),
            sa.Column("series_id", sa.Integer, nullable=False),
            # Whose price; 0: of events that wait for one.
            sa.Column("price_version_no", sa.Integer, nullable=False),
            sa.Column("tenant_id", sa.Text, nullable=False),
            *_amounts(),
            sa.PrimaryKeyConstraint(*key),
        )
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 80)")  # they are changed all day
        _pivot(table, key, _COUNTS)
        enable_tenant_isolation(table)
        only_the_operator_writes(table, deletes=True)
        _by_meter(f"{table.removesuffix('s')}_meters", table, key, _COUNTS)
    _create_invoice_usage()


def _create_invoice_usage() -> None:
    table = "invoice_usage"
    _rename(table)
    op.execute(f"ALTER INDEX ix_{table}_tenant_day RENAME TO old_ix_{table}_tenant_day")
    key = ("invoice_id", "day", "series_id", "price_version_no")
    op.create_table(
        table,
        *_measures(_METERS),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("series_id", sa.Integer, nullable=False),
        sa.Column("price_version_no", sa.Integer, nullable=False),
        sa.Column("invoice_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        *_amounts(),
        sa.PrimaryKeyConstraint(*key),
    )
    _pivot(table, (*key, "tenant_id"), ())
    op.create_foreign_key(
        f"fk_{table}_invoice", table, "invoices",
        ["tenant_id", "invoice_id"], ["tenant_id", "id"],
    )  # fmt: skip
    op.create_index(f"ix_{table}_tenant_day", table, ["tenant_id", "day"])
    enable_tenant_isolation(table)
    only_the_operator_writes(table, deletes=True)
    _by_meter("invoice_usage_meters", table, (*key, "tenant_id"), ())
    op.execute(
        f"CREATE TRIGGER keep_invoice_detail BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION keep_invoice_detail()"
    )
    op.execute(
        f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    # An invoice takes thousands of rows in one statement.
    op.execute(
        """
        CREATE FUNCTION only_into_drafts() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
          held text;
        BEGIN
          SELECT id INTO held FROM invoices
           WHERE id IN (SELECT DISTINCT invoice_id FROM taken) AND status <> 'draft' LIMIT 1;
          IF FOUND THEN
            RAISE EXCEPTION 'invoice % is no draft: its % stay as they are', held, TG_TABLE_NAME
              USING ERRCODE = 'restrict_violation';
          END IF;
          RETURN NULL;
        END $$
        """
    )
    op.execute(
        f"CREATE TRIGGER only_into_drafts AFTER INSERT ON {table} "
        "REFERENCING NEW TABLE AS taken FOR EACH STATEMENT EXECUTE FUNCTION only_into_drafts()"
    )


def _rename(table: str) -> None:
    op.rename_table(table, f"old_{table}")
    op.execute(f"ALTER INDEX pk_{table} RENAME TO old_pk_{table}")


def _measures(names: tuple[str, ...]) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in names]


def _amounts() -> list[sa.Column[object]]:
    return [
        sa.Column(f"{meter}_amount", _MONEY, nullable=False, server_default="0")
        for meter in _METERS
    ]


def _pivot(table: str, key: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Move what the old table has, and drop it."""
    columns, sums = [*key], [*key]
    for meter in (*counts, *_METERS):
        columns.append(meter)
        sums.append(f"coalesce(sum(quantity) FILTER (WHERE meter = '{meter}'), 0)")
    for meter in _METERS:
        columns.append(f"{meter}_amount")
        sums.append(f"coalesce(sum(amount) FILTER (WHERE meter = '{meter}'), 0)")
    # Row-level security does not bind the owner meanwhile.
    op.execute(f"ALTER TABLE old_{table} NO FORCE ROW LEVEL SECURITY")
    op.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(sums)} FROM old_{table} GROUP BY {', '.join(key)}"
    )
    op.drop_table(f"old_{table}")


def _by_meter(view: str, table: str, key: tuple[str, ...], counts: tuple[str, ...]) -> None:
    values = [f"('{name}', t.{name}, CAST(0 AS numeric(38, 12)))" for name in counts]
    values += [f"('{meter}', t.{meter}, t.{meter}_amount)" for meter in _METERS]
    op.execute(
        f"CREATE VIEW {view} WITH (security_invoker = true) AS "
        f"SELECT {', '.join(f't.{name}' for name in key)}, m.meter, m.quantity, m.amount "
        f"FROM {table} t CROSS JOIN LATERAL (VALUES {', '.join(values)}) "
        "AS m (meter, quantity, amount) WHERE m.quantity <> 0 OR m.amount <> 0"
    )
    op.execute(f"GRANT SELECT ON {view} TO {roles().app_role}, {roles().admin_role}")
