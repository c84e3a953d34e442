"""A completed upload keeps the order of its parts, and the version it became names it, so that its
bytes need not be moved and one upload can become one version only.

Revision: 0005, after 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("uploads", sa.Column("part_ids", sa.ARRAY(sa.Text)))
    # The owner is bound by row-level security too, and sees no tenant's rows.
    for table in ("uploads", "upload_parts"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(
        """
        UPDATE uploads SET part_ids = ordered.ids FROM (
          SELECT upload_id, array_agg(id ORDER BY position) AS ids
          FROM upload_parts WHERE position IS NOT NULL GROUP BY upload_id
        ) AS ordered
        WHERE ordered.upload_id = uploads.id
        """
    )
    for table in ("uploads", "upload_parts"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.drop_column("upload_parts", "position")
    op.add_column("adapter_versions", sa.Column("upload_id", sa.Text))
    op.create_foreign_key(
        "fk_adapter_versions_tenant_id_uploads",
        "adapter_versions",
        "uploads",
        ["tenant_id", "upload_id"],
        ["tenant_id", "id"],
    )
    op.create_index("uq_adapter_versions_upload_id", "adapter_versions", ["upload_id"], unique=True)
