"""A budget of a tenant's whole account, as the tenant chooses it.

Revision: 0045, after 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "account_budgets",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("amount", sa.Numeric(38, 12), nullable=False),  # of a month
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("hard", sa.Boolean, nullable=False),
        sa.Column("thresholds", sa.ARRAY(sa.SmallInteger), nullable=False),  # percent
        sa.Column(
            "updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.CheckConstraint("amount > 0", name="amount"),
    )
    enable_tenant_isolation("account_budgets")


def downgrade() -> None:
    op.drop_table("account_budgets")
