"""Probes: what every active version was asked beside the base model, and prompts of tenants' own.

Revision: 0025, after 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "adapter_probes",
        sa.Column("version_id", sa.Text, sa.ForeignKey("adapter_versions.id"), primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("next_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("error", sa.Text),
        sa.Column("findings", JSONB),
        sa.Column("probed_at", _TIME),
        sa.CheckConstraint("state IN ('waiting', 'done', 'failed')", name="state"),
    )
    op.create_table(
        "adapter_probe_prompts",
        sa.Column("adapter_id", sa.Text, sa.ForeignKey("adapters.id"), primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("prompts", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    for table in ("adapter_probes", "adapter_probe_prompts"):
        enable_tenant_isolation(table)
