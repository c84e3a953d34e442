"""Invoices: whom they are for and from, their lines and the usage behind each, payments; numbers
without gaps. What is final stays as it is, whoever asks the database to change it.

Revision: 0014, after 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes, roles

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_MONEY = sa.Numeric(38, 12)
_TEXTS = ("name", "address", "tax_id", "email")


def upgrade() -> None:
    _create_parties()
    _create_invoices()
    _create_details()
    for table in ("invoices", "invoice_lines", "invoice_usage"):
        enable_tenant_isolation(table)
        only_the_operator_writes(table, deletes=True)
    enable_tenant_isolation("invoice_payments", append_only=True)
    only_the_operator_writes("invoice_payments")
    _keep_what_is_final()


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)


def _texts() -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, server_default="") for name in _TEXTS]


def _create_parties() -> None:
    op.create_table(
        "billing_settings",
        sa.Column("id", sa.SmallInteger, primary_key=True),
        *_texts(),
        sa.Column("number_prefix", sa.Text, nullable=False, server_default="INV-"),
        sa.Column("credit_note_prefix", sa.Text, nullable=False, server_default="CN-"),
        sa.Column("grace_days", sa.SmallInteger, nullable=False, server_default="3"),
        sa.Column("payment_days", sa.SmallInteger, nullable=False, server_default="14"),
        sa.Column("automatic", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("id = 1", name="one"),
    )
    op.execute("INSERT INTO billing_settings (id) VALUES (1)")
    op.create_table(
        "invoice_numbers",
        sa.Column("series", sa.Text, primary_key=True),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO invoice_numbers VALUES ('invoice', 0), ('credit_note', 0)")
    admin = roles().admin_role
    op.execute(f"GRANT SELECT, UPDATE ON billing_settings, invoice_numbers TO {admin}")
    op.create_table(
        "billing_profiles",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
        *_texts(),
        # The operator's to say.
        sa.Column("tax_name", sa.Text, nullable=False, server_default=""),
        sa.Column("tax_rate", sa.Numeric(7, 4)),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("tax_rate BETWEEN 0 AND 100", name="tax_rate"),
    )
    enable_tenant_isolation("billing_profiles")
    only_the_operator_writes("billing_profiles")
    own = f"tenant_id, {', '.join(_TEXTS)}, updated_at"
    op.execute(f"GRANT INSERT ({own}), UPDATE ({own}) ON billing_profiles TO {roles().app_role}")


def _create_invoices() -> None:
    op.create_table(
        "invoices",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("period", sa.Date, nullable=False),  # its first day
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("number", sa.Text),
        sa.Column("of_invoice", sa.Text, sa.ForeignKey("invoices.id")),
        sa.Column("subtotal", _MONEY, nullable=False, server_default="0"),
        sa.Column("tax", _MONEY, nullable=False, server_default="0"),
        sa.Column("total", _MONEY, nullable=False, server_default="0"),
        # As they were: whom from, whom to, plan, minimum, included, tax.
        sa.Column("seller", JSONB, nullable=False),
        sa.Column("buyer", JSONB, nullable=False),
        sa.Column("terms", JSONB, nullable=False),
        sa.Column("reason", sa.Text),  # of a credit note, or why it is void
        sa.Column("ledger_transaction_id", sa.Text),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finalised_at", _TIME),
        sa.Column("due_at", _TIME),
        sa.Column("voided_at", _TIME),
        sa.CheckConstraint("kind IN ('invoice', 'credit_note')", name="kind"),
        sa.CheckConstraint("status IN ('draft', 'final', 'void')", name="status"),
        sa.CheckConstraint("(kind = 'credit_note') = (of_invoice IS NOT NULL)", name="of_invoice"),
        sa.CheckConstraint("(status = 'draft') = (number IS NULL)", name="number"),
        sa.CheckConstraint("currency ~ '^[A-Z]{3}$'", name="currency"),
        sa.CheckConstraint("extract(day from period) = 1", name="period"),
        sa.CheckConstraint("total = subtotal + tax", name="total"),
        sa.UniqueConstraint("tenant_id", "id"),
        sa.UniqueConstraint("number", "kind"),
    )
    op.create_index("ix_invoices_tenant_period", "invoices", ["tenant_id", "period"])
    op.create_index("ix_invoices_of_invoice", "invoices", ["of_invoice"])
    # One draft and one that holds, for each month and currency.
    for status in ("draft", "final"):
        op.create_index(
            f"uq_invoices_{status}",
            "invoices",
            ["tenant_id", "period", "currency"],
            unique=True,
            postgresql_where=sa.text(f"kind = 'invoice' AND status = '{status}'"),
        )


def _of_invoice() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["tenant_id", "invoice_id"], ["invoices.tenant_id", "invoices.id"]
    )


def _create_details() -> None:
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_id", sa.Text, nullable=False),
        sa.Column("no", sa.Integer, nullable=False),
        _tenant(),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("amount", _MONEY, nullable=False),  # rounded, what is asked for
        sa.Column("exact", _MONEY, nullable=False),
        sa.Column("month", sa.Date),  # of usage: its first day
        sa.Column("meter", sa.Text),
        sa.Column("class", sa.Text),
        sa.Column("price_version_no", sa.Integer),
        sa.Column("quantity", sa.Numeric(38, 0)),
        sa.Column("prices", JSONB),  # as they were: [{"from", "per_million"}]
        sa.Column("of_line", sa.Integer),  # of a credit note: the invoice's
        sa.PrimaryKeyConstraint("invoice_id", "no"),
        _of_invoice(),
    )
    # What of the sums by day an invoice has had; what is in the sums and in none is due.
    op.create_table(
        "invoice_usage",
        sa.Column("invoice_id", sa.Text, nullable=False),
        _tenant(),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("series_id", sa.Integer, sa.ForeignKey("usage_series.id"), nullable=False),
        sa.Column("meter", sa.Text, nullable=False),
        sa.Column("price_version_no", sa.Integer, nullable=False),
        sa.Column("quantity", sa.BigInteger, nullable=False),
        sa.Column("amount", _MONEY, nullable=False),
        sa.PrimaryKeyConstraint("invoice_id", "day", "series_id", "meter", "price_version_no"),
        _of_invoice(),
    )
    op.create_index("ix_invoice_usage_tenant_day", "invoice_usage", ["tenant_id", "day"])
    op.create_table(
        "invoice_payments",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("invoice_id", sa.Text, nullable=False),
        sa.Column("amount", _MONEY, nullable=False),
        sa.Column("reference", sa.Text, nullable=False),
        sa.Column("paid_at", _TIME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("invoice_id", "reference"),
        sa.CheckConstraint("amount > 0", name="amount"),
        _of_invoice(),
    )


def _keep_what_is_final() -> None:
    """A draft may be made anew; an invoice with a number is voided, and that is all."""
    op.execute(
        """
        CREATE FUNCTION keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
          free text[] := ARRAY['status', 'voided_at', 'reason'];
        BEGIN
          IF OLD.status = 'draft' THEN
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
          END IF;
          IF TG_OP = 'UPDATE' AND OLD.status = 'final' AND NEW.status = 'void'
             AND to_jsonb(OLD) - free = to_jsonb(NEW) - free THEN
            RETURN NEW;
          END IF;
          RAISE EXCEPTION 'invoice % is %: it stays as it is', OLD.id, OLD.status
            USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    op.execute(
        """
        CREATE FUNCTION keep_invoice_detail() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
          of_id text := CASE TG_OP WHEN 'INSERT' THEN NEW.invoice_id ELSE OLD.invoice_id END;
          found text;
        BEGIN
          SELECT status INTO found FROM invoices WHERE id = of_id;
          IF found = 'draft' AND TG_OP <> 'UPDATE' THEN
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
          END IF;
          RAISE EXCEPTION 'invoice % is %: its % stay as they are', of_id, found, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER keep_invoice BEFORE UPDATE OR DELETE ON invoices "
        "FOR EACH ROW EXECUTE FUNCTION keep_invoice()"
    )
    for table in ("invoice_lines", "invoice_usage"):
        op.execute(
            f"CREATE TRIGGER keep_invoice_detail BEFORE INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION keep_invoice_detail()"
        )
    for table in ("invoices", "invoice_lines", "invoice_usage"):
        op.execute(
            f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
