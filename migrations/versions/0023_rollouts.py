"""Roll-outs: which parts of an alias' callers each version has, shadow traffic, every change of an
alias, staged roll-outs, what shadows answered, and since when a version is deprecated.

Revision: 0023, after 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("adapter_versions", sa.Column("deprecated_at", _TIME))
    op.execute("ALTER TABLE adapter_versions NO FORCE ROW LEVEL SECURITY")
    op.execute("UPDATE adapter_versions SET deprecated_at = now() WHERE state = 'deprecated'")
    op.execute("ALTER TABLE adapter_versions FORCE ROW LEVEL SECURITY")
    _divide_aliases()
    _create_alias_changes()
    _create_rollouts()
    _create_shadow_answers()


def _divide_aliases() -> None:
    op.add_column("adapter_aliases", sa.Column("shadow", JSONB))
    op.add_column("adapter_aliases", sa.Column("parts", sa.ARRAY(sa.Integer)))
    # Row-level security does not bind the owner meanwhile.
    op.execute("ALTER TABLE adapter_aliases NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE adapter_aliases SET parts = (SELECT array_agg(version ORDER BY version) "
        "FROM jsonb_to_recordset(targets) AS t (version integer, weight integer), "
        "generate_series(1, weight))"
    )
    op.execute("ALTER TABLE adapter_aliases FORCE ROW LEVEL SECURITY")
    op.alter_column("adapter_aliases", "parts", nullable=False)


def _of_alias() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("alias", sa.Text, nullable=False),
    )


def _create_alias_changes() -> None:
    op.create_table(
        "alias_changes",
        sa.Column("id", sa.Text, primary_key=True),
        *_of_alias(),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("before", JSONB),
        sa.Column("after", JSONB),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("rollout_id", sa.Text),
        sa.Column("at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_index(
        "ix_alias_changes_alias", "alias_changes", ["tenant_id", "adapter_id", "alias", "id"]
    )
    op.create_index("ix_alias_changes_at", "alias_changes", ["at"])
    enable_tenant_isolation("alias_changes", append_only=True)


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        sa.Column("id", sa.Text, primary_key=True),
        *_of_alias(),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("before", JSONB, nullable=False),  # targets
        sa.Column("stages", JSONB, nullable=False),
        sa.Column("guard", JSONB, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="running"),
        sa.Column("stage", sa.Integer, nullable=False, server_default="0"),
        sa.Column("stage_began_at", _TIME, nullable=False),
        sa.Column("requests_before", sa.BigInteger),
        sa.Column("held_since", _TIME),
        sa.Column("held_reason", sa.Text),
        sa.Column("numbers", JSONB),
        sa.Column("reason", sa.Text),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.CheckConstraint(
            "state IN ('running', 'completed', 'rolled_back', 'cancelled')", name="state"
        ),
    )
    op.create_index("ix_rollouts_alias", "rollouts", ["tenant_id", "adapter_id", "alias", "id"])
    op.create_index(
        "uq_rollouts_running", "rollouts", ["tenant_id", "adapter_id", "alias"],
        unique=True, postgresql_where=sa.text("state = 'running'"),
    )  # fmt: skip
    enable_tenant_isolation("rollouts")


def _create_shadow_answers() -> None:
    op.create_table(
        "shadow_answers",
        sa.Column("id", sa.Text, primary_key=True),  # of the shadow's request
        *_of_alias(),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("shadow_version", sa.Integer, nullable=False),
        sa.Column("greedy", sa.Boolean, nullable=False),
        sa.Column("answer", JSONB, nullable=False),
        sa.Column("shadow_answer", JSONB),
        sa.Column("error", sa.Text),
        sa.Column("at", _TIME, nullable=False, server_default=sa.func.now()),
    )
    op.create_index(
        "ix_shadow_answers_alias", "shadow_answers", ["tenant_id", "adapter_id", "alias", "id"]
    )
    op.create_index("ix_shadow_answers_at", "shadow_answers", ["at"])
    enable_tenant_isolation("shadow_answers")
