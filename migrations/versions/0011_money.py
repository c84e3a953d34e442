"""What money stands on: prices by class, tier and owner, sums of usage by hour and day, and a
ledger in which every transaction adds up to nothing.

Revision: 0011, after 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import (
    CURRENT_TENANT,
    enable_tenant_isolation,
    only_the_operator_writes,
    roles,
)

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_MONEY = sa.Numeric(38, 12)
_METERS_BEFORE = ("uncached_prefill", "cached_prefill", "output")
_METERS_SINCE = ("cold_load", "device_residency", "host_residency", "stored")
_FREE_SINCE = ", ".join(f"('{meter}')" for meter in _METERS_SINCE)


def upgrade() -> None:
    _widen_prices()
    _create_series_and_sums()
    _create_ledger()
    # Credit that was given, and credit that was paid for.
    kind = sa.Column("kind", sa.Text, nullable=False, server_default="granted")
    op.add_column("credit_grants", kind)
    op.create_check_constraint("kind", "credit_grants", "kind IN ('granted', 'bought')")


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)


def _widen_prices() -> None:
    # A short number for tenants and price versions: what a million events refer to.
    op.execute("ALTER TABLE tenants ADD COLUMN no integer GENERATED ALWAYS AS IDENTITY UNIQUE")
    op.execute(
        "ALTER TABLE price_versions ADD COLUMN no integer GENERATED ALWAYS AS IDENTITY UNIQUE"
    )
    op.add_column("price_versions", sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")))
    op.add_column("price_versions", sa.Column("adapter_id", sa.Text))
    zero = {"nullable": False, "server_default": "0"}
    op.add_column("price_versions", sa.Column("minimum", _MONEY, **zero))  # of an invoice
    op.add_column("price_versions", sa.Column("included", _MONEY, **zero))  # in each month
    op.create_check_constraint("terms", "price_versions", "minimum >= 0 AND included >= 0")
    op.drop_index("uq_price_versions_scope_from", "price_versions")
    op.execute(
        "CREATE UNIQUE INDEX uq_price_versions_scope_from ON price_versions (effective_from, "
        "coalesce(model, ''), coalesce(plan, ''), coalesce(tenant_id, ''), "
        "coalesce(adapter_id, '')) WHERE withdrawn_at IS NULL"
    )
    op.add_column("prices", sa.Column("class", sa.Text, nullable=False, server_default=""))
    op.add_column("prices", sa.Column("from_quantity", sa.BigInteger, **zero))
    op.execute("ALTER TABLE prices DROP CONSTRAINT pk_prices")
    op.create_primary_key("pk_prices", "prices", _PRICE_KEY)
    op.drop_constraint(op.f("ck_prices_meter"), "prices")
    op.create_check_constraint("from_quantity", "prices", "from_quantity >= 0")
    # The lists so far said nothing of these, and nothing was charged for them.
    op.execute(
        "INSERT INTO prices (price_version_id, meter, per_million) "
        f"SELECT v.id, m.meter, 0 FROM price_versions v, (VALUES {_FREE_SINCE}) AS m (meter)"
    )
    # What a tenant has agreed with the operator is nobody else's to read.
    _isolate_prices()


_PRICE_KEY = ["price_version_id", "meter", "class", "from_quantity"]


def _isolate_prices() -> None:
    app, admin = roles().app_role, roles().admin_role
    own = f"tenant_id IS NULL OR tenant_id = {CURRENT_TENANT}"
    listed = f"SELECT id FROM price_versions WHERE {own}"
    for table, seen in (("price_versions", own), ("prices", f"price_version_id IN ({listed})")):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant_rows ON {table} FOR SELECT TO {app} USING ({seen})")
        op.execute(
            f"CREATE POLICY operator_rows ON {table} TO {admin} USING (true) WITH CHECK (true)"
        )


def _create_series_and_sums() -> None:
    # Everything of an event that repeats, once: an event and its sums refer to it by number.
    op.create_table(
        "usage_series",
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        _tenant(),
        sa.Column("key", sa.LargeBinary, nullable=False),  # digest of all that follows
        sa.Column("kind", sa.Text, nullable=False),  # chatcmpl, cmpl, ...; residency, stored
        sa.Column("model", sa.Text, nullable=False),  # the base model's id
        sa.Column("asked_model", sa.Text),  # as the client wrote it
        sa.Column("alias", sa.Text),
        sa.Column("adapter_id", sa.Text),
        sa.Column("adapter_version_id", sa.Text),
        sa.Column("adapter_digest", sa.Text),  # what really ran
        sa.Column("api_key_id", sa.Text),
        sa.Column("plan", sa.Text),
        sa.Column("class", sa.Text, nullable=False),  # that really served; "" of storage
        sa.Column("asked_class", sa.Text),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("tenant_id", "key"),
    )
    enable_tenant_isolation("usage_series", append_only=True)
    only_the_operator_writes("usage_series")
    for table, unit, kind in (("usage_hours", "hour", _TIME), ("usage_days", "day", sa.Date())):
        op.create_table(
            table,
            _tenant(),
            sa.Column(unit, kind, nullable=False),  # UTC
            sa.Column("series_id", sa.Integer, sa.ForeignKey("usage_series.id"), nullable=False),
            sa.Column("meter", sa.Text, nullable=False),
            # Whose price; 0: of events that wait for one.
            sa.Column("price_version_no", sa.Integer, nullable=False),
            sa.Column("quantity", sa.BigInteger, nullable=False),
            sa.Column("amount", _MONEY, nullable=False),
            sa.PrimaryKeyConstraint("tenant_id", unit, "series_id", "meter", "price_version_no"),
        )
        enable_tenant_isolation(table)
        only_the_operator_writes(table, deletes=True)
    # Days whose sums have moved since the ledger last had them.
    op.create_table(
        "ledger_due",
        _tenant(),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("since", _TIME, nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("tenant_id", "day"),
    )
    enable_tenant_isolation("ledger_due")
    only_the_operator_writes("ledger_due", deletes=True)


def _create_ledger() -> None:
    op.create_table(
        "ledger_accounts",
        sa.Column("id", sa.Integer, sa.Identity(always=True), primary_key=True),
        _tenant(),
        sa.Column("name", sa.Text, nullable=False),  # "receivable", "revenue:output", ...
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("tenant_id", "name", "currency"),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
    )
    op.create_table(
        "ledger_transactions",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("seq", sa.BigInteger, nullable=False),  # of the tenant's, from 1, without gaps
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("reference", sa.Text, nullable=False),  # what there is one of this kind for
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False),  # that it belongs to, UTC
        sa.Column("reverses", sa.Text, sa.ForeignKey("ledger_transactions.id")),
        sa.Column("note", sa.Text),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("prev_hash", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),  # keyed; covers the entries and prev_hash
        sa.UniqueConstraint("tenant_id", "seq"),
        sa.UniqueConstraint("tenant_id", "reverses"),
        sa.UniqueConstraint("tenant_id", "kind", "reference"),
        sa.UniqueConstraint("tenant_id", "id"),
    )
    op.create_index(
        "ix_ledger_transactions_tenant_day", "ledger_transactions", ["tenant_id", "kind", "day"]
    )
    op.create_table(
        "ledger_entries",
        sa.Column("transaction_id", sa.Text, nullable=False),
        sa.Column("line", sa.SmallInteger, nullable=False),
        _tenant(),
        sa.Column(
            "account_id",
            sa.Integer,
            sa.ForeignKey("ledger_accounts.id"),
            nullable=False,
        ),
        sa.Column("amount", _MONEY, nullable=False),  # debit above 0, credit below
        sa.PrimaryKeyConstraint("transaction_id", "line"),
        sa.ForeignKeyConstraint(
            ["tenant_id", "transaction_id"],
            ["ledger_transactions.tenant_id", "ledger_transactions.id"],
        ),
        sa.CheckConstraint("amount <> 0", name="amount"),
    )
    op.create_index("ix_ledger_entries_account_id", "ledger_entries", ["account_id"])
    op.create_table(
        "ledger_balances",
        sa.Column("account_id", sa.Integer, sa.ForeignKey("ledger_accounts.id"), primary_key=True),
        _tenant(),
        sa.Column("balance", _MONEY, nullable=False),
        sa.Column("entries", sa.BigInteger, nullable=False),
    )
    for table in ("ledger_accounts", "ledger_transactions", "ledger_entries"):
        enable_tenant_isolation(table, append_only=True)
        only_the_operator_writes(table)
    enable_tenant_isolation("ledger_balances")
    only_the_operator_writes("ledger_balances", deletes=True)
    _demand_balance()


def _demand_balance() -> None:
    """Asked when the database transaction ends: whatever wrote to the ledger, each of its
    transactions has entries, of accounts of its own tenant and currency, that add up to 0."""
    op.execute(
        """
        CREATE FUNCTION demand_balance() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
          of_id text := CASE TG_TABLE_NAME
            WHEN 'ledger_transactions' THEN to_jsonb(NEW)->>'id'
            ELSE to_jsonb(NEW)->>'transaction_id' END;
          entries bigint;
          total numeric;
          strange bigint;
        BEGIN
          SELECT count(*), coalesce(sum(e.amount), 0),
                 count(*) FILTER (WHERE a.currency <> t.currency OR a.tenant_id <> t.tenant_id)
            INTO entries, total, strange
            FROM ledger_entries e
            JOIN ledger_transactions t ON t.id = e.transaction_id
            JOIN ledger_accounts a ON a.id = e.account_id
           WHERE e.transaction_id = of_id;
          IF entries < 2 OR total <> 0 OR strange > 0 THEN
            RAISE EXCEPTION 'ledger transaction % does not balance: % entries, sum %, % strange',
              of_id, entries, total, strange USING ERRCODE = 'check_violation';
          END IF;
          RETURN NULL;
        END $$
        """
    )
    for table in ("ledger_transactions", "ledger_entries"):
        op.execute(
            f"CREATE CONSTRAINT TRIGGER balanced AFTER INSERT ON {table} "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION demand_balance()"
        )
