"""Answers to management requests that may be asked for again.

Revision: 0008, after 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("caller_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("body_sha256", sa.Text),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("began_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_index("ix_idempotency_keys_began_at", "idempotency_keys", ["began_at"])
    enable_tenant_isolation("idempotency_keys")
