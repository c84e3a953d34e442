"""Adapter versions that the operator has pinned to the device.

Revision: 0031, after 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0031"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "adapter_pins",
        sa.Column("version_id", sa.Text, sa.ForeignKey("adapter_versions.id"), primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column(
            "pinned_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.Column("pinned_by", sa.Text, nullable=False),
    )
    enable_tenant_isolation("adapter_pins")
    only_the_operator_writes("adapter_pins", deletes=True)
