"""History of service by minute and hour, and where its sampler stands.

Revision: 0033, after 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes, roles

revision = "0033"
down_revision = "0036"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SERVED = (
    "finished ttft_promised ttft_met tpot_promised tpot_met prompt_tokens cached_tokens "
    "output_tokens preemptions relegations"
)
_ENGINE = (
    "running running_max waiting waiting_max free_pages live_kv_pages cached_kv_pages "
    "adapter_pages kv_evictions adapter_evictions steps"
)


def _sums(names: str, kind: type[sa.types.TypeEngine[object]]) -> list[sa.Column[object]]:
    return [sa.Column(name, kind, nullable=False, server_default="0") for name in names.split()]


def _maps(names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, JSONB, nullable=False, server_default="{}") for name in names.split()]


def _lists(names: str) -> list[sa.Column[object]]:
    kind = sa.ARRAY(sa.BigInteger)
    return [sa.Column(name, kind, nullable=False, server_default="{}") for name in names.split()]


def upgrade() -> None:
    for table in ("service_minutes", "service_hours"):
        op.create_table(
            table,
            sa.Column("at", _TIME, primary_key=True),
            sa.Column("tenant_id", sa.Text, primary_key=True),
            sa.Column("class", sa.Text, primary_key=True),
            *_sums(_SERVED, sa.BigInteger),
            *_sums("service ttft_s tpot_s queue_s", sa.Double),
            *_maps("ended refused answers"),
            *_lists("ttft tpot queue"),
        )
        op.create_index(f"ix_{table}_tenant_at", table, ["tenant_id", "at"])
        enable_tenant_isolation(table)
        only_the_operator_writes(table, deletes=True)
    for table in ("engine_minutes", "engine_hours"):
        op.create_table(
            table,
            sa.Column("at", _TIME, primary_key=True),
            *_sums("samples ready", sa.Integer),
            *_sums(_ENGINE, sa.BigInteger),
            *_sums("oldest_wait_s_max load_s step_ms_max", sa.Double),
            *_maps("adapters loads restarts"),
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {roles().admin_role}")
    op.create_table(
        "history_marks",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("data", JSONB, nullable=False),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON history_marks TO {roles().admin_role}")
