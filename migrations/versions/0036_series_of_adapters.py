"""The series of usage that belong to an adapter's versions are found without reading all of the
tenant's: for the lists of adapters.

Revision: 0036, after 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_usage_series_adapter_version",
        "usage_series",
        ["tenant_id", "adapter_version_id"],
        postgresql_where=sa.text("adapter_version_id IS NOT NULL"),
    )
