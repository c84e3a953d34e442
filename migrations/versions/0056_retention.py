"""Events and changes of aliases that are old enough may be removed, and uploads that versions were
made of; and an index by which it is known that no delivery refers to an event.

Revision: 0056, after 0055
"""

from __future__ import annotations

from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

_OF_BOTH = "fk_adapter_versions_tenant_id_uploads"
_OF_ID = "fk_adapter_versions_upload_id_uploads"

_FUNCTION = """
CREATE OR REPLACE FUNCTION refuse_change_but_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND (EXISTS (
    SELECT 1 FROM tenants
     WHERE id = OLD.tenant_id AND erase_after <= now() AND erased_at IS NULL
  ) {or_old}) THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'insufficient_privilege';
END $$
"""
_OR_OLD = """
    OR (to_jsonb(OLD) ->> CASE TG_TABLE_NAME WHEN 'events' THEN 'created_at' ELSE 'at' END
       )::timestamptz < now() - CASE TG_TABLE_NAME WHEN 'events' THEN interval '89 days'
                                ELSE interval '399 days' END"""


def upgrade() -> None:
    op.execute(_FUNCTION.format(or_old=_OR_OLD))
    op.create_index("ix_webhook_deliveries_event_id", "webhook_deliveries", ["event_id"])
    op.drop_constraint(_OF_BOTH, "adapter_versions")
    op.create_foreign_key(
        _OF_ID, "adapter_versions", "uploads", ["upload_id"], ["id"], ondelete="SET NULL"
    )


def downgrade() -> None:
    op.drop_constraint(_OF_ID, "adapter_versions")
    both = ["tenant_id", "upload_id"], ["tenant_id", "id"]
    op.create_foreign_key(_OF_BOTH, "adapter_versions", "uploads", *both)
    op.execute(_FUNCTION.format(or_old=""))
    op.drop_index("ix_webhook_deliveries_event_id", "webhook_deliveries")
