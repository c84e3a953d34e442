"""How far each tenant is in the tiers of its prices.

Revision: 0012, after 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_volumes",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("month", sa.Date, nullable=False),  # its first day, UTC
        sa.Column("price_version_no", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("class", sa.Text, nullable=False),
        sa.Column("meter", sa.Text, nullable=False),
        sa.Column("quantity", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint(
            "tenant_id", "month", "price_version_no", "model", "class", "meter"
        ),
        sa.ForeignKeyConstraint(["price_version_no"], ["price_versions.no"]),
    )
    enable_tenant_isolation("usage_volumes")
    only_the_operator_writes("usage_volumes")
