"""The tax a tenant's invoices have at each time, kept by the database itself.

Revision: 0061, after 0060
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None

_NOTE = """
CREATE FUNCTION note_tax() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant_taxes (tenant_id, since, tax_name, tax_rate)
  VALUES (NEW.tenant_id, NEW.tax_since, NEW.tax_name, NEW.tax_rate);
  RETURN NULL;
END $$
"""
_FIRST = """
CREATE TRIGGER note_first_tax AFTER INSERT ON billing_profiles
  FOR EACH ROW WHEN (NEW.tax_rate IS NOT NULL) EXECUTE FUNCTION note_tax()
"""
_CHANGED = """
CREATE TRIGGER note_changed_tax AFTER UPDATE OF tax_name, tax_rate, tax_since ON billing_profiles
  FOR EACH ROW WHEN ((OLD.tax_name, OLD.tax_rate, OLD.tax_since)
                     IS DISTINCT FROM (NEW.tax_name, NEW.tax_rate, NEW.tax_since))
  EXECUTE FUNCTION note_tax()
"""
_THERE = """
INSERT INTO tenant_taxes (tenant_id, since, tax_name, tax_rate)
SELECT tenant_id, tax_since, tax_name, tax_rate FROM billing_profiles WHERE tax_rate IS NOT NULL
"""


def upgrade() -> None:
    today = sa.text("(now() AT TIME ZONE 'UTC')::date")
    op.add_column(
        "billing_profiles", sa.Column("tax_since", sa.Date, nullable=False, server_default=today)
    )
    op.create_table(
        "tenant_taxes",
        sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("since", sa.Date, nullable=False),
        sa.Column("noted_on", sa.Date, nullable=False, server_default=today),
        sa.Column("tax_name", sa.Text, nullable=False),
        sa.Column("tax_rate", sa.Numeric(7, 4)),
    )
    op.create_index("ix_tenant_taxes", "tenant_taxes", ["tenant_id", "no"])
    # The owner is bound by row-level security too, and sees no tenant's entries.
    op.execute("ALTER TABLE billing_profiles NO FORCE ROW LEVEL SECURITY")
    op.execute(_THERE)
    op.execute("ALTER TABLE billing_profiles FORCE ROW LEVEL SECURITY")
    enable_tenant_isolation("tenant_taxes", append_only=True)
    only_the_operator_writes("tenant_taxes")
    op.execute(_NOTE)
    op.execute(_FIRST)
    op.execute(_CHANGED)


def downgrade() -> None:
    op.execute("DROP TRIGGER note_changed_tax ON billing_profiles")
    op.execute("DROP TRIGGER note_first_tax ON billing_profiles")
    op.execute("DROP FUNCTION note_tax()")
    op.drop_table("tenant_taxes")
    op.drop_column("billing_profiles", "tax_since")
