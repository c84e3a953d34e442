"""An adapter version's own chat template, where it came with one.

Revision: 0030, after 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("adapter_versions", sa.Column("chat_template", sa.Text))
