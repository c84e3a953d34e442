"""Plans say what becomes of a request that cannot be in time.

Revision: 0004, after 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("late", sa.Text, nullable=False, server_default="best_effort"))
    op.create_check_constraint("late", "plans", "late IN ('refuse', 'relegate', 'best_effort')")
