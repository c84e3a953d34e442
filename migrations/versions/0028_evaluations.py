"""Evaluations: items, the versions that are asked, and every answer.

Revision: 0028, after 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def _of_evaluation() -> list[sa.Column[object]]:
    return [
        sa.Column("evaluation_id", sa.Text, sa.ForeignKey("evaluations.id"), primary_key=True),
        sa.Column("no", sa.Integer, primary_key=True),
    ]


def _tenant() -> sa.Column[object]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("adapter", sa.Text, nullable=False),
        sa.Column("subjects", JSONB, nullable=False),
        sa.Column("scoring", sa.Text, nullable=False),
        sa.Column("max_tokens", sa.Integer, nullable=False),
        sa.Column("items", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="queued"),
        sa.Column("error", sa.Text),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("served_at", _TIME),
        sa.Column("not_before", _TIME),
        sa.Column("ended_at", _TIME),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="state"
        ),
    )
    op.create_index("ix_evaluations_tenant_id", "evaluations", ["tenant_id", "id"])
    open_ = sa.text("state IN ('queued', 'running')")
    op.create_index("ix_evaluations_open", "evaluations", ["served_at"], postgresql_where=open_)
    op.create_table(
        "evaluation_items",
        *_of_evaluation(),
        _tenant(),
        sa.Column("item", JSONB, nullable=False),
    )
    op.create_table(
        "evaluation_answers",
        *_of_evaluation(),
        sa.Column("subject", sa.Text, primary_key=True),
        _tenant(),
        sa.Column("answer", sa.Text),
        sa.Column("score", sa.Float),
        sa.Column("error", sa.Text),
        sa.Column("request_ids", JSONB, nullable=False, server_default="[]"),
        sa.Column("prompt_tokens", sa.Integer, nullable=False, server_default="0"),
        sa.Column("output_tokens", sa.Integer, nullable=False, server_default="0"),
        sa.Column("asking", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("place", sa.Integer, nullable=False, server_default="0"),
        sa.Column("total", sa.Float, nullable=False, server_default="0"),
        sa.Column("answered_at", _TIME),
    )
    for table in ("evaluations", "evaluation_items", "evaluation_answers"):
        enable_tenant_isolation(table)
