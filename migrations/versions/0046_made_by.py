"""Who made a key, and which keys it comes from; by which secret an invitation was made; and from
when on a person's sessions count at a tenant.

Revision: 0046, after 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_TENANTS = ("api_keys", "audit_logs", "invitations")
_MAKER = (
    "UPDATE {table} k SET created_by = a.actor FROM audit_logs a"
    " WHERE a.target = k.id AND a.action = '{action}'"
)
# A key whose maker has ended already stays: nobody was told that it would end with it.
_LINEAGE = """
WITH RECURSIVE family AS (
  SELECT id, tenant_id, ARRAY[]::text[] AS lineage FROM api_keys
  WHERE created_by IS NULL OR created_by NOT LIKE 'api\\_key:%'
  UNION ALL
  SELECT child.id, child.tenant_id, ARRAY[family.id] || family.lineage FROM api_keys child
  JOIN family ON child.created_by = 'api_key:' || family.id AND child.tenant_id = family.tenant_id
  JOIN api_keys parent ON parent.id = family.id
  WHERE parent.revoked_at IS NULL AND coalesce(parent.expires_at > now(), true)
)
UPDATE api_keys SET lineage = family.lineage FROM family WHERE family.id = api_keys.id
"""


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("created_by", sa.Text))
    op.add_column(
        "api_keys",
        sa.Column("lineage", sa.ARRAY(sa.Text), nullable=False, server_default="{}"),
    )
    op.add_column("admin_keys", sa.Column("created_by", sa.Text))
    op.add_column("invitations", sa.Column("key_prefix", sa.Text))
    op.add_column("memberships", sa.Column("sessions_from", sa.DateTime(timezone=True)))
    # The owner is bound by row-level security too, and sees no tenant's rows.
    for table in _TENANTS:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(_MAKER.format(table="api_keys", action="api_key.create"))
    op.execute(_MAKER.format(table="admin_keys", action="admin_key.create"))
    op.execute(_LINEAGE)
    op.execute(
        "UPDATE invitations SET key_prefix = k.prefix FROM admin_keys k"
        " WHERE invitations.created_by = 'admin_key:' || k.id"
    )
    for table in _TENANTS:
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.drop_column("memberships", "sessions_from")
    op.drop_column("invitations", "key_prefix")
    op.drop_column("admin_keys", "created_by")
    op.drop_column("api_keys", "lineage")
    op.drop_column("api_keys", "created_by")
