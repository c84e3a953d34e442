"""When a version's check was begun, and how often one was begun without an end that anybody saw:
tenants take turns by the one, what ends its checks is refused by the other.

Revision: 0024, after 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "adapter_versions",
        sa.Column("check_attempts", sa.Integer, nullable=False, server_default="0"),
    )
    op.add_column("adapter_versions", sa.Column("check_begun_at", sa.DateTime(timezone=True)))
    op.create_index("ix_adapter_versions_turn", "adapter_versions", ["tenant_id", "check_begun_at"])
