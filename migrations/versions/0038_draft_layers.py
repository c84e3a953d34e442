"""An adapter version's own draft layer, where it came with one.

Revision: 0038, after 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("adapter_versions", sa.Column("draft_layer_digest", sa.Text))
    op.add_column("adapter_versions", sa.Column("draft_layer_bytes", sa.BigInteger))
    op.create_check_constraint(
        "ck_adapter_versions_draft_layer",
        "adapter_versions",
        "(draft_layer_digest IS NULL) = (draft_layer_bytes IS NULL)",
    )
    op.create_index(
        "ix_adapter_versions_draft_layer_digest",
        "adapter_versions",
        ["draft_layer_digest"],
        postgresql_where=sa.text("draft_layer_digest IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_column("adapter_versions", "draft_layer_bytes")
    op.drop_column("adapter_versions", "draft_layer_digest")
