"""Which tenants are the platform's own: the two of the synthetic check and the one of adapter
probes. Lists of requests, sums and invoices leave them out unless they are asked for.

Revision: 0043, after 0042
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "tenants", sa.Column("internal", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.execute(
        "UPDATE tenants SET internal = true"
        " WHERE plan = 'tenora-probes' OR id IN (SELECT tenant FROM canaries)"
    )


def downgrade() -> None:
    op.drop_column("tenants", "internal")
