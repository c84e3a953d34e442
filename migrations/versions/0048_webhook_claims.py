"""Which deliveries of webhooks are in flight, and what is due of an endpoint.

Revision: 0048, after 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "webhook_deliveries", sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_index(
        "ix_webhook_deliveries_claimed_until",
        "webhook_deliveries",
        ["claimed_until"],
        postgresql_where=sa.text("claimed_until IS NOT NULL"),
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint_id_next_at",
        "webhook_deliveries",
        ["endpoint_id", "next_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )


def downgrade() -> None:
    op.drop_index("ix_webhook_deliveries_endpoint_id_next_at", "webhook_deliveries")
    op.drop_index("ix_webhook_deliveries_claimed_until", "webhook_deliveries")
    op.drop_column("webhook_deliveries", "claimed_until")
