"""Jobs are tried again, wait for what they say, and end with the right of who asked for them. Up to
where an audit chain was found right is in a table that nobody who writes to the chain touches.

Revision: 0065, after 0064
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None

_BEGIN_AGAIN = (
    "UPDATE jobs SET place = NULL, done = 0, result = '{}' "
    "WHERE kind = 'audit_verification' AND finished_at IS NULL"
)
_COLUMNS = ("seq", "hash", "seal")


def upgrade() -> None:
    op.create_table(
        "audit_verified",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("seal", sa.Text, nullable=False),
    )
    # The owner is bound by row-level security too, and sees no tenant's chain.
    op.execute("ALTER TABLE audit_heads NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "INSERT INTO audit_verified SELECT chain, verified_seq, verified_hash, verified_seal "
        "FROM audit_heads WHERE verified_seq IS NOT NULL"
    )
    op.execute("ALTER TABLE audit_heads FORCE ROW LEVEL SECURITY")
    enable_tenant_isolation("audit_verified", column="chain")
    only_the_operator_writes("audit_verified")
    for name in _COLUMNS:
        op.drop_column("audit_heads", f"verified_{name}")
    op.add_column("jobs", sa.Column("key_prefix", sa.Text))
    op.add_column("jobs", sa.Column("attempts", sa.Integer, nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("not_before", sa.DateTime(timezone=True)))
    op.add_column("jobs", sa.Column("waiting_for", sa.Text))
    op.drop_constraint("state", "jobs", type_="check")
    states = "state IN ('waiting', 'running', 'done', 'failed', 'cancelled')"
    op.create_check_constraint("state", "jobs", states)
    # The place of a verification is another: it begins again.
    op.execute(_BEGIN_AGAIN)
    op.execute(
        "UPDATE jobs SET key_prefix = admin_keys.prefix FROM admin_keys "
        "WHERE jobs.asked_by = 'admin_key:' || admin_keys.id"
    )


def downgrade() -> None:
    for name, kind in (("seq", sa.BigInteger), ("hash", sa.Text), ("seal", sa.Text)):
        op.add_column("audit_heads", sa.Column(f"verified_{name}", kind))
    op.drop_table("audit_verified")
    for name in ("key_prefix", "attempts", "not_before", "waiting_for"):
        op.drop_column("jobs", name)
    op.execute("UPDATE jobs SET state = 'failed' WHERE state = 'cancelled'")
    op.execute(_BEGIN_AGAIN)
    op.drop_constraint("state", "jobs", type_="check")
    states = "state IN ('waiting', 'running', 'done', 'failed')"
    op.create_check_constraint("state", "jobs", states)
