"""How often the server has failed at an evaluation in turn, so that one which cannot be run ends.

Revision: 0047, after 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "evaluations", sa.Column("attempts", sa.Integer, nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column("evaluations", "attempts")
