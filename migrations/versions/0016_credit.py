"""Credit says of which currency it is; the ledger's balance is asked of the ledger itself, whatever
tables somebody puts before it.

Revision: 0016, after 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import roles

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Row-level security binds the owner too, who must see which currency there was.
    op.execute("ALTER TABLE price_versions NO FORCE ROW LEVEL SECURITY")
    known = op.get_bind().scalar(
        sa.text(
            "SELECT currency FROM price_versions WHERE withdrawn_at IS NULL AND "
            "effective_from <= now() ORDER BY plan IS NULL DESC, effective_from DESC LIMIT 1"
        )
    )
    op.execute("ALTER TABLE price_versions FORCE ROW LEVEL SECURITY")
    op.add_column(
        "credit_grants",
        sa.Column("currency", sa.Text, nullable=False, server_default=known or "USD"),
    )
    op.alter_column("credit_grants", "currency", server_default="USD")
    op.create_check_constraint("currency", "credit_grants", "currency ~ '^[A-Z]{3}$'")
    op.execute(f"ALTER FUNCTION demand_balance() SET search_path = {roles().schema}, pg_temp")
