"""Responses that are stored, for tenants that chose so and whose plan allows it.

Revision: 0044, after 0043
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, roles

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
DAYS_MAX = 90


def upgrade() -> None:
    op.add_column(
        "plans",
        sa.Column("stored_responses", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.add_column("tenant_settings", sa.Column("stored_response_days", sa.SmallInteger))
    op.create_check_constraint(
        "stored_response_days",
        "tenant_settings",
        f"stored_response_days BETWEEN 1 AND {DAYS_MAX}",
    )
    op.create_table(
        "stored_responses",
        # Refers to no row of `tenants`, which an erasure locks before it waits for what is written.
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("made_by", sa.Text, nullable=False),  # a key's id, or a person's
        sa.Column("previous_id", sa.Text),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("response", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id"),
    )
    # Holds all that the tenant's limit asks for.
    op.create_index(
        "ix_stored_responses_tenant_id_expires_at_bytes",
        "stored_responses",
        ["tenant_id", "expires_at", "bytes"],
    )
    op.create_index("ix_stored_responses_expires_at", "stored_responses", ["expires_at"])
    enable_tenant_isolation("stored_responses")
    # The operator's role sweeps them and reads none.
    admin = roles().admin_role
    op.execute(f"REVOKE SELECT, INSERT, UPDATE ON stored_responses FROM {admin}")
    op.execute(f"GRANT SELECT (tenant_id, id, expires_at) ON stored_responses TO {admin}")


def downgrade() -> None:
    op.drop_table("stored_responses")
    op.drop_constraint("stored_response_days", "tenant_settings", type_="check")
    op.drop_column("tenant_settings", "stored_response_days")
    op.drop_column("plans", "stored_responses")
