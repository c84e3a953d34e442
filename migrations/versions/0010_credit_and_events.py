"""Prepaid credit: grants, and tenants that spend nothing else. Events that a tenant is told of,
such as a budget that nears its end; webhooks will deliver them.

Revision: 0010, after 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_MONEY = sa.Numeric(38, 12)


def upgrade() -> None:
    prepaid = sa.Column("prepaid", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("tenants", prepaid)
    op.create_table(
        "credit_grants",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("amount", _MONEY, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("expires_at", _TIME),
        # What of it was left unspent when it expired; NULL until then.
        sa.Column("lapsed", _MONEY),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint("amount > 0", name="amount"),
        sa.CheckConstraint("lapsed BETWEEN 0 AND amount", name="lapsed"),
        sa.CheckConstraint("lapsed IS NULL OR expires_at IS NOT NULL", name="expired"),
    )
    op.create_index("ix_credit_grants_tenant_id", "credit_grants", ["tenant_id"])
    enable_tenant_isolation("credit_grants")
    only_the_operator_writes("credit_grants")
    op.create_table(
        "events",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("once", sa.Text, nullable=False),  # what there is one event of
        sa.Column("data", JSONB, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("tenant_id", "type", "once"),
    )
    enable_tenant_isolation("events", append_only=True)


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)
