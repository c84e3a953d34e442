"""What engines say they have metered in all: beside it the books can be compared.

Revision: 0018, after 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes, roles

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_COUNTS = ("sequences", "prompt_tokens", "cached_tokens", "output_tokens", "cold_loads")


def upgrade() -> None:
    now = {"nullable": False, "server_default": sa.func.now()}
    op.create_table(
        "engine_outboxes",
        sa.Column("engine", sa.Text, primary_key=True),
        sa.Column("whole_since", sa.Date, nullable=False),
        sa.Column("first_heard_at", _TIME, **now),
        sa.Column("last_heard_at", _TIME, **now),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON engine_outboxes TO {roles().admin_role}")
    op.create_table(
        "engine_totals",
        sa.Column("engine", sa.Text, nullable=False),
        # As the engine calls the tenant, whether or not there is one: nothing it says is lost.
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False),  # UTC, of the end of each sequence
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in _COUNTS),
        sa.Column("updated_at", _TIME, **now),
        sa.PrimaryKeyConstraint("engine", "tenant_id", "day"),
    )
    op.create_index("ix_engine_totals_tenant_day", "engine_totals", ["tenant_id", "day"])
    enable_tenant_isolation("engine_totals")
    only_the_operator_writes("engine_totals")
