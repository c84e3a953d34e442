"""Which database this is, and how far it has come, for the object store to compare.

Revision: 0039, after 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import roles

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "database_identity",
        sa.Column("singleton", sa.Boolean, primary_key=True, server_default=sa.true()),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("adopted_at", sa.DateTime(timezone=True)),
        sa.Column("sweep_all", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("secret_check", sa.Text),
        sa.CheckConstraint("singleton", "singleton"),
    )
    op.execute("INSERT INTO database_identity (id) VALUES (gen_random_uuid()::text)")
    op.execute(f"GRANT SELECT, UPDATE ON database_identity TO {roles().admin_role}")


def downgrade() -> None:
    op.drop_table("database_identity")
