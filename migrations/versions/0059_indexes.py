"""Indexes by which a page reads what it shows and a job what it does, made while others write.

Revision: 0059, after 0058
"""

from __future__ import annotations

from alembic import op

from tenora_platform.indexing import create_index_beside_writers

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None

# Written in about the order of this time: a few pages say where to look. No tenant's own queries
# prefer it to the tenant's index, as they would another tree.
_BY_TIME = "WITH (pages_per_range = 32, autosummarize = on)"
_INDEXES = (
    ("ix_audit_logs_tenant_id_id", "audit_logs", "(tenant_id, id)"),
    ("ix_usage_hours_hour", "usage_hours", f"USING brin (hour) {_BY_TIME}"),
    ("ix_usage_days_day", "usage_days", "(day)"),
    ("ix_usage_events_time", "usage_events", f"USING brin (event_time) {_BY_TIME}"),
    ("ix_occupancy_events_time", "occupancy_events", f"USING brin (ends) {_BY_TIME}"),
    (
        "ix_usage_events_more_sequences",
        "usage_events",
        "(tenant_no, event_time) WHERE sequence > 0",
    ),
    ("ix_tenants_internal", "tenants", "(id) WHERE internal"),
    ("ix_tenants_namespace", "tenants", "(namespace)"),
    ("ix_tenants_plan", "tenants", "(plan)"),
    ("ix_tenants_suspended", "tenants", "(updated_at) WHERE status = 'suspended'"),
    ("ix_tenants_trust_group", "tenants", "(trust_group) WHERE trust_group IS NOT NULL"),
    ("ix_adapter_probes_waiting", "adapter_probes", "(next_at) WHERE state = 'waiting'"),
    ("ix_adapter_versions_revoked_at", "adapter_versions", "(revoked_at) WHERE state = 'revoked'"),
)


def upgrade() -> None:
    for name, table, on in _INDEXES:
        create_index_beside_writers(name, table, on)


def downgrade() -> None:
    for name, _, _ in reversed(_INDEXES):
        op.drop_index(name)
