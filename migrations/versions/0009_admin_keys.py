"""Admin keys with roles; keys of either kind may have two secrets while one takes over.

Revision: 0009, after 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import roles

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "admin_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False, index=True),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("revoked_at", _TIME),
        sa.Column("last_used_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.CheckConstraint(
            "role IN ('owner', 'operator', 'billing', 'read_only', 'metrics')", name="role"
        ),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON admin_keys TO {roles().admin_role}")
    for table in ("api_keys", "admin_keys"):
        op.add_column(table, sa.Column("previous_prefix", sa.Text))
        op.add_column(table, sa.Column("previous_hash", sa.Text))
        op.add_column(table, sa.Column("previous_expires_at", _TIME))
        op.create_check_constraint(
            "previous",
            table,
            "num_nonnulls(previous_prefix, previous_hash, previous_expires_at) IN (0, 3)",
        )
        op.create_index(f"ix_{table}_previous_prefix", table, ["previous_prefix"])
    # Authentication asks before it knows the tenant: a session sees the key with this prefix.
    asked = "NULLIF(current_setting('app.key_prefix', true), '')"
    op.execute(
        f"ALTER POLICY key_lookup ON api_keys USING (prefix = {asked} OR previous_prefix = {asked})"
    )
