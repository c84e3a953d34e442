"""Changes of aliases in the order in which they were made, whatever the clocks of those who made
them.

Revision: 0029, after 0028
"""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE alias_changes ADD COLUMN no bigint GENERATED ALWAYS AS IDENTITY")
    op.alter_column("alias_changes", "no", nullable=False)
    op.drop_index("ix_alias_changes_alias", "alias_changes")
    op.create_index(
        "ix_alias_changes_alias", "alias_changes", ["tenant_id", "adapter_id", "alias", "no"]
    )
