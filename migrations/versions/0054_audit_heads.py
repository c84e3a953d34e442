"""The end of each audit chain under a seal, so that entries that are missing there are missed.

Revision: 0054, after 0053
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.audit.heads import AuditSeals
from tenora_platform.isolation import enable_tenant_isolation, roles, secret

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

_LAST = "SELECT DISTINCT ON (chain) chain, seq, hash FROM audit_logs ORDER BY chain, seq DESC"


def upgrade() -> None:
    heads = op.create_table(
        "audit_heads",
        sa.Column("chain", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("seal", sa.Text, nullable=False),
    )
    # The owner is bound by row-level security too, and sees no tenant's entries.
    op.execute("ALTER TABLE audit_logs NO FORCE ROW LEVEL SECURITY")
    seals = AuditSeals(secret())
    found = op.get_bind().execute(sa.text(_LAST)).all()
    op.execute("ALTER TABLE audit_logs FORCE ROW LEVEL SECURITY")
    rows = [
        {"chain": chain, "seq": seq, "hash": hash_, "seal": seals.of(chain, seq, hash_)}
        for chain, seq, hash_ in found
    ]
    if rows:
        op.bulk_insert(heads, rows)
    enable_tenant_isolation("audit_heads", column="chain")
    op.execute(f"REVOKE DELETE ON audit_heads FROM {roles().app_role}, {roles().admin_role}")


def downgrade() -> None:
    op.drop_table("audit_heads")
