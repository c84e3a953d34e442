"""Jobs: long work of the operator's, started, looked after and gone on with by any worker. And up
to where the audit chains were found right.

Revision: 0063, after 0061
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import roles

revision = "0063"
down_revision = "0061"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("spec", JSONB, nullable=False),
        sa.Column("place", JSONB),
        sa.Column("done", sa.Integer, nullable=False, server_default="0"),
        sa.Column("total", sa.Integer),
        sa.Column("result", JSONB, nullable=False, server_default="{}"),
        sa.Column("error", sa.Text),
        sa.Column("worker", sa.Text),
        sa.Column("asked_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("started_at", _TIME),
        sa.Column("beat_at", _TIME),
        sa.Column("finished_at", _TIME),
        sa.CheckConstraint("state IN ('waiting', 'running', 'done', 'failed')", name="state"),
    )
    op.create_index("ix_jobs_kind_id", "jobs", ["kind", "id"])
    op.create_index(
        "ix_jobs_open", "jobs", ["asked_at"], postgresql_where=sa.text("finished_at IS NULL")
    )
    for name, kind in (("seq", sa.BigInteger), ("hash", sa.Text), ("seal", sa.Text)):
        op.add_column("audit_heads", sa.Column(f"verified_{name}", kind))
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON jobs TO {roles().admin_role}")


def downgrade() -> None:
    op.drop_table("jobs")
    for name in ("seq", "hash", "seal"):
        op.drop_column("audit_heads", f"verified_{name}")
