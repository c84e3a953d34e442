"""Budgets by day and month, soft caps and what follows them, for plans and for single keys; keys
with limits and models of their own; the client's request id beside its usage.

Revision: 0007, after 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_MONEY = sa.Numeric(38, 12)


def upgrade() -> None:
    for column in (
        sa.Column("requests_per_min", sa.Integer),
        sa.Column("tokens_per_min", sa.BigInteger),
        sa.Column("parallel_requests", sa.Integer),
        sa.Column("budget", _MONEY),
        sa.Column("models", sa.ARRAY(sa.Text)),  # NULL: all
    ):
        op.add_column("api_keys", column)
    for table in ("plans", "api_keys"):
        op.add_column(table, sa.Column("budget_day", _MONEY))
        op.add_column(table, sa.Column("budget_soft", sa.Double))
        op.add_column(
            table, sa.Column("budget_action", sa.Text, nullable=False, server_default="refuse")
        )
        op.create_check_constraint("budget_soft", table, "budget_soft BETWEEN 0 AND 1")
        op.create_check_constraint("budget_action", table, "budget_action IN ('refuse', 'degrade')")
    op.add_column("usage_events", sa.Column("x_request_id", sa.Text))
