"""Calls of the inference API that were answered with an error.

Revision: 0042, after 0041
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "rejected_calls",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, nullable=False),  # '': of which nobody knows whose it was
        sa.Column("at", _TIME, nullable=False),
        sa.Column("last_at", _TIME),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("status", sa.SmallInteger, nullable=False),
        *[sa.Column(name, sa.Text) for name in ("code", "param")],
        sa.Column("message", sa.Text, nullable=False),
        *[sa.Column(name, sa.Text) for name in ("model", "api_key_id", "request_id")],
    )
    op.create_index("ix_rejected_calls_tenant_id_id", "rejected_calls", ["tenant_id", "id"])
    op.create_index("ix_rejected_calls_at", "rejected_calls", ["at"])
    enable_tenant_isolation("rejected_calls")
    only_the_operator_writes("rejected_calls", deletes=True)


def downgrade() -> None:
    op.drop_table("rejected_calls")
