"""Proof: runs that compare the layers of the books, days that were found right, and the canary's
tenants, first answers and rounds. All of it the operator's.

Revision: 0020, after 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import roles

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("only_tenant", sa.Text),
        sa.Column("first_day", sa.Date),
        sa.Column("last_day", sa.Date),
        sa.Column("asked_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("started_at", _TIME),
        sa.Column("finished_at", _TIME),
        sa.Column("difference_count", sa.Integer),
        sa.Column("result", JSONB),
        sa.Column("error", sa.Text),
        sa.CheckConstraint("mode IN ('recent', 'full')", name="mode"),
        sa.CheckConstraint("state IN ('waiting', 'running', 'done', 'failed')", name="state"),
    )
    op.create_index("ix_reconciliations_asked_at", "reconciliations", ["asked_at"])
    op.create_table(
        "reconciled_days",
        sa.Column("of_tenant", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("checked_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "canaries",
        sa.Column("role", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "canary_answers",
        sa.Column("served_as", sa.Text, primary_key=True),
        sa.Column("asked", sa.Text, primary_key=True),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "canary_rounds",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("ok", sa.Boolean, nullable=False),
        sa.Column("checks", JSONB, nullable=False),
        sa.Column("at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_index("ix_canary_rounds_at", "canary_rounds", ["at"])
    for table in (
        "reconciliations",
        "reconciled_days",
        "canaries",
        "canary_answers",
        "canary_rounds",
    ):
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {roles().admin_role}")
