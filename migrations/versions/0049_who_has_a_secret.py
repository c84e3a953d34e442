"""Who was given a key's secret by a rotation, and who made a webhook's endpoint or said where it
leads.

Revision: 0049, after 0048
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None

_TENANTS = ("api_keys", "audit_logs", "webhook_endpoints")
_SECRET = """
UPDATE {table} k SET secret_by = a.actor
FROM (SELECT DISTINCT ON (target) target, actor FROM audit_logs
      WHERE action = '{kind}.rotate' ORDER BY target, at DESC, seq DESC) a
WHERE a.target = k.id
"""
_MAKER = (
    "UPDATE webhook_endpoints w SET created_by = a.actor FROM audit_logs a"
    " WHERE a.target = w.id AND a.action = 'webhook_endpoint.create'"
)


def upgrade() -> None:
    for table in ("api_keys", "admin_keys"):
        op.add_column(table, sa.Column("secret_by", sa.Text))
        op.add_column(table, sa.Column("previous_by", sa.Text))
    op.add_column("webhook_endpoints", sa.Column("created_by", sa.Text))
    op.add_column("webhook_endpoints", sa.Column("url_by", sa.Text))
    # The owner is bound by row-level security too, and sees no tenant's rows.
    for table in _TENANTS:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(_SECRET.format(table="api_keys", kind="api_key"))
    op.execute(_SECRET.format(table="admin_keys", kind="admin_key"))
    op.execute(_MAKER)
    for table in _TENANTS:
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.drop_column("webhook_endpoints", "url_by")
    op.drop_column("webhook_endpoints", "created_by")
    for table in ("api_keys", "admin_keys"):
        op.drop_column(table, "previous_by")
        op.drop_column(table, "secret_by")
