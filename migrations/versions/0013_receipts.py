"""Receipts: the keys that sign them, what tenants choose for themselves, and the contents of
requests of tenants that chose to have them kept.

Revision: 0013, after 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, roles

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
DAYS_MAX = 366


def upgrade() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("kid", sa.Text, primary_key=True),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sa.Column("sealed", sa.LargeBinary),
        sa.Column("signs_from", _TIME, nullable=False),
        sa.Column("revoked_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON signing_keys TO {roles().admin_role}")
    op.create_table(
        "tenant_settings",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("keep_contents_days", sa.SmallInteger),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint(f"keep_contents_days BETWEEN 1 AND {DAYS_MAX}", name="days"),
    )
    enable_tenant_isolation("tenant_settings")
    op.create_table(
        "kept_contents",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "request_id"),
    )
    op.create_index("ix_kept_contents_expires_at", "kept_contents", ["expires_at"])
    enable_tenant_isolation("kept_contents")
    # The operator's role sweeps them and reads none.
    admin = roles().admin_role
    op.execute(f"REVOKE SELECT, INSERT, UPDATE ON kept_contents FROM {admin}")
    op.execute(f"GRANT SELECT (tenant_id, request_id, expires_at) ON kept_contents TO {admin}")
