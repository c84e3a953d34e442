"""When an invoice took its usage, and when usage that had waited for a price was rated: so that the
requests behind an invoice's line are exactly those it took.

Revision: 0053, after 0052
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "late_ratings",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("request", sa.Uuid, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("rated_at", sa.DateTime(timezone=True), nullable=False),
    )
    enable_tenant_isolation("late_ratings", append_only=True)
    only_the_operator_writes("late_ratings")
    op.add_column("invoices", sa.Column("taken_at", sa.DateTime(timezone=True)))
    # What is final stays as it is, by a trigger; the owner sees no tenant's rows.
    op.execute("ALTER TABLE invoices NO FORCE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE invoices DISABLE TRIGGER USER")
    op.execute("UPDATE invoices SET taken_at = coalesce(finalised_at, created_at)")
    op.execute("ALTER TABLE invoices ENABLE TRIGGER USER")
    op.execute("ALTER TABLE invoices FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.drop_column("invoices", "taken_at")
    op.drop_table("late_ratings")
