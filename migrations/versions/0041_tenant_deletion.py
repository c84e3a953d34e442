"""Tenants can be deleted: suspended at once, erased after a while, and until then restored.

Revision: 0041, after 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import roles

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_APPEND_ONLY = ("events", "alias_changes")
_DELETABLE = (
    *_APPEND_ONLY,
    "webhook_endpoints",
    "webhook_deliveries",
    "people",
    "billing_profiles",
)
"""What the operator's role could not delete so far."""


def upgrade() -> None:
    for name in ("deleted_at", "erase_after", "erased_at"):
        op.add_column("tenants", sa.Column(name, _TIME))
    op.add_column("tenants", sa.Column("status_before", sa.Text))
    op.create_check_constraint(
        "deletion",
        "tenants",
        "(deleted_at IS NULL) = (erase_after IS NULL) AND (deleted_at IS NULL) = "
        "(status_before IS NULL) AND (erased_at IS NULL OR deleted_at IS NOT NULL) "
        "AND (deleted_at IS NULL OR status = 'suspended')",
    )
    op.create_index(
        "ix_tenants_erase_after",
        "tenants",
        ["erase_after"],
        postgresql_where=sa.text("erase_after IS NOT NULL AND erased_at IS NULL"),
    )
    op.execute(
        """
        CREATE FUNCTION refuse_change_but_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF TG_OP = 'DELETE' AND EXISTS (
            SELECT 1 FROM tenants
             WHERE id = OLD.tenant_id AND erase_after <= now() AND erased_at IS NULL
          ) THEN
            RETURN OLD;
          END IF;
          RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    for table in _APPEND_ONLY:
        op.execute(f"DROP TRIGGER append_only ON {table}")
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change_but_erasure()"
        )
        op.execute(
            f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    for table in _DELETABLE:
        op.execute(f"GRANT DELETE ON {table} TO {roles().admin_role}")


def downgrade() -> None:
    for table in _DELETABLE:
        op.execute(f"REVOKE DELETE ON {table} FROM {roles().admin_role}")
    for table in _APPEND_ONLY:
        op.execute(f"DROP TRIGGER no_truncate ON {table}")
        op.execute(f"DROP TRIGGER append_only ON {table}")
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    op.execute("DROP FUNCTION refuse_change_but_erasure()")
    for name in ("status_before", "erased_at", "erase_after", "deleted_at"):
        op.drop_column("tenants", name)
