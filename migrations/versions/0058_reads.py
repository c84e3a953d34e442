"""Versions that wait for their probe, and tenants' namespaces, are noted where they are looked for.

Revision: 0058, after 0056
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0056"
branch_labels = None
depends_on = None

# Whoever makes a version active, it waits for its probe from then on.
_NOTE_PROBE = """
CREATE FUNCTION note_probe() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO adapter_probes (version_id, tenant_id, state)
  VALUES (NEW.id, NEW.tenant_id, 'waiting') ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$
"""
_PROBE_NOTED = """
CREATE TRIGGER note_probe AFTER INSERT OR UPDATE OF state ON adapter_versions
  FOR EACH ROW WHEN (NEW.state = 'active') EXECUTE FUNCTION note_probe()
"""
_PROBES = """
INSERT INTO adapter_probes (version_id, tenant_id, state)
SELECT id, tenant_id, 'waiting' FROM adapter_versions WHERE state = 'active'
ON CONFLICT DO NOTHING
"""
# Who knows the secret notes it anew.
_FORGET_NAMESPACE = """
CREATE FUNCTION forget_namespace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.namespace := NULL;
  RETURN NEW;
END $$
"""
_NAMESPACE_FORGOTTEN = """
CREATE TRIGGER forget_namespace BEFORE UPDATE OF trust_group ON tenants
  FOR EACH ROW WHEN (OLD.trust_group IS DISTINCT FROM NEW.trust_group)
  EXECUTE FUNCTION forget_namespace()
"""


def upgrade() -> None:
    op.add_column("tenants", sa.Column("namespace", sa.Text))
    op.execute(_FORGET_NAMESPACE)
    op.execute(_NAMESPACE_FORGOTTEN)
    op.execute(_NOTE_PROBE)
    op.execute(_PROBE_NOTED)
    # The owner is bound by row-level security too, and sees no tenant's rows.
    for table in ("adapter_probes", "adapter_versions"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(_PROBES)
    for table in ("adapter_probes", "adapter_versions"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    op.execute("DROP TRIGGER note_probe ON adapter_versions")
    op.execute("DROP FUNCTION note_probe()")
    op.execute("DROP TRIGGER forget_namespace ON tenants")
    op.execute("DROP FUNCTION forget_namespace()")
    op.drop_column("tenants", "namespace")
