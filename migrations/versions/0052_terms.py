"""The plan a tenant had at each time, kept by the database itself.

Revision: 0052, after 0051
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import enable_tenant_isolation, only_the_operator_writes

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

_NOTE = """
CREATE FUNCTION note_plan() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  last timestamptz := (SELECT max(since) FROM tenant_plans WHERE tenant_id = NEW.id);
BEGIN
  INSERT INTO tenant_plans (tenant_id, since, plan) VALUES (
    NEW.id,
    CASE WHEN last IS NULL THEN NEW.created_at
         ELSE greatest(clock_timestamp(), last + interval '1 microsecond') END,
    NEW.plan);
  RETURN NULL;
END $$
"""
_CHANGED = """
CREATE TRIGGER note_changed_plan AFTER UPDATE OF plan ON tenants
  FOR EACH ROW WHEN (OLD.plan IS DISTINCT FROM NEW.plan) EXECUTE FUNCTION note_plan()
"""
_MADE = """
CREATE TRIGGER note_first_plan AFTER INSERT ON tenants
  FOR EACH ROW EXECUTE FUNCTION note_plan()
"""
# What the audit log has of changes of plan, oldest first; before the first, what it was changed
# from; without any, today's.
_CHANGES = """
INSERT INTO tenant_plans (tenant_id, since, plan)
SELECT DISTINCT ON (tenant_id, at) tenant_id, at, details::json #>> '{after,plan}'
  FROM audit_logs
 WHERE action = 'tenant.update' AND tenant_id = target
   AND details::json #>> '{before,plan}' IS DISTINCT FROM details::json #>> '{after,plan}'
   AND EXISTS (SELECT 1 FROM plans WHERE name = details::json #>> '{after,plan}')
   AND EXISTS (SELECT 1 FROM tenants WHERE id = tenant_id AND created_at < at)
 ORDER BY tenant_id, at, seq DESC
"""
_FIRST = """
INSERT INTO tenant_plans (tenant_id, since, plan)
SELECT t.id, t.created_at, coalesce(
         (SELECT a.details::json #>> '{before,plan}' FROM audit_logs a
           WHERE a.action = 'tenant.update' AND a.tenant_id = t.id AND a.target = t.id
             AND a.details::json #>> '{before,plan}'
                 IS DISTINCT FROM a.details::json #>> '{after,plan}'
             AND EXISTS (SELECT 1 FROM plans WHERE name = a.details::json #>> '{before,plan}')
           ORDER BY a.seq LIMIT 1), t.plan)
  FROM tenants t
"""


def upgrade() -> None:
    op.create_table(
        "tenant_plans",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("plan", sa.Text, sa.ForeignKey("plans.name"), nullable=False),
    )
    # The owner is bound by row-level security too, and sees no tenant's entries.
    for table in ("audit_logs", "tenants"):
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    op.execute(_CHANGES)
    op.execute(_FIRST)
    for table in ("audit_logs", "tenants"):
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    enable_tenant_isolation("tenant_plans", append_only=True)
    only_the_operator_writes("tenant_plans")
    op.execute(_NOTE)
    op.execute(_MADE)
    op.execute(_CHANGED)


def downgrade() -> None:
    op.execute("DROP TRIGGER note_changed_plan ON tenants")
    op.execute("DROP TRIGGER note_first_plan ON tenants")
    op.execute("DROP FUNCTION note_plan()")
    op.drop_table("tenant_plans")
