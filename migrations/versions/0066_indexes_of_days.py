"""Indexes by which a reconciliation finds the newest days, made while others write.

Revision: 0066, after 0065
"""

from __future__ import annotations

from alembic import op

from tenora_platform.indexing import create_index_beside_writers

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_ledger_transactions_usage_day", "ledger_transactions", "(day) WHERE kind = 'usage'"),
    ("ix_engine_totals_day", "engine_totals", "(day)"),
)


def upgrade() -> None:
    for index, table, on in _INDEXES:
        create_index_beside_writers(index, table, on)


def downgrade() -> None:
    for index, _, _ in reversed(_INDEXES):
        op.drop_index(index)
