"""How many sequences a request has, with each event of one that has several: a receipt says
`incomplete` until all are in the books.

Revision: 0060, after 0059
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage_events", sa.Column("sequences", sa.Integer))


def downgrade() -> None:
    op.drop_column("usage_events", "sequences")
