"""Why requests waited: by minute, who because of whom or of what, how service was shared out
meanwhile, and of single requests for a while.

Revision: 0032, after 0031
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes, roles

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


def _minute() -> sa.Column[datetime]:
    return sa.Column("minute", _TIME, nullable=False)


def upgrade() -> None:
    # `waiter` and `other` are tenants as the engine calls them. No tenant may read these tables,
    # for they name others.
    op.create_table(
        "wait_minutes",
        _minute(),
        *map(_text, ("waiter", "class", "cause", "other")),
        _number("seconds"),
        sa.Column("sequences", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("minute", "waiter", "class", "cause", "other"),
    )
    op.create_table(
        "share_minutes",
        _minute(),
        *map(_text, ("served", "class")),
        _number("service"),
        sa.PrimaryKeyConstraint("minute", "served", "class"),
    )
    op.create_table(
        "gap_minutes",
        _minute(),
        _text("class"),
        *map(_number, ("gap", "bound")),
        sa.PrimaryKeyConstraint("minute", "class"),
    )
    op.create_table(
        "wait_marks",
        sa.Column("started", sa.Text, primary_key=True),
        sa.Column("seen_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("totals", JSONB, nullable=False),
    )
    op.create_table(
        "request_wait_parts",
        sa.Column("request", sa.Uuid, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("kept_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("parts", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("request", "sequence"),
    )
    for table in (
        "wait_minutes",
        "share_minutes",
        "gap_minutes",
        "wait_marks",
        "request_wait_parts",
    ):
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {roles().admin_role}")
    op.create_table(
        "request_waits",
        sa.Column("request", sa.Uuid, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        _text("tenant_id"),
        sa.Column("kept_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("causes", JSONB, nullable=False),  # milliseconds by cause, of no other's name
        sa.PrimaryKeyConstraint("request", "sequence"),
    )
    enable_tenant_isolation("request_waits")
    only_the_operator_writes("request_waits", deletes=True)
    for table in ("request_waits", "request_wait_parts"):
        op.create_index(f"ix_{table}_kept_at", table, ["kept_at"])
