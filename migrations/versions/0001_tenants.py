"""Plans, tenants, API keys and the audit log.

Revision: 0001, the first
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import (
    CURRENT_TENANT,
    enable_tenant_isolation,
    grant_shared,
    roles,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    _create_plans()
    _create_tenants()
    _create_api_keys()
    _create_audit_logs()


def _times() -> tuple[sa.Column[object], sa.Column[object]]:
    return (
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
    )


def _create_plans() -> None:
    plans = op.create_table(
        "plans",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sla_class", sa.Text, nullable=False),
        sa.Column("tiers", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("tpot_ms", sa.Double),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("memory_share", sa.Double),
        sa.Column("requests_per_min", sa.Integer),
        sa.Column("tokens_per_min", sa.BigInteger),
        sa.Column("parallel_requests", sa.Integer),
        sa.Column("adapters", sa.Integer),
        sa.Column("adapter_bytes", sa.BigInteger),
        sa.Column("budget", sa.Numeric(38, 12)),
        *_times(),
        sa.CheckConstraint("sla_class IN ('priority', 'default', 'flex')", name="sla_class"),
        sa.CheckConstraint("weight > 0", name="weight"),
    )
    grant_shared("plans")
    shared = {"budget": None, "memory_share": None}
    op.bulk_insert(
        plans,
        [
            {
                "name": "free",
                "sla_class": "flex",
                "tiers": ["flex"],
                "ttft_ms": None,
                "tpot_ms": None,
                "weight": 0.5,
                "requests_per_min": 60,
                "tokens_per_min": 60_000,
                "parallel_requests": 4,
                "adapters": 4,
                "adapter_bytes": 256 * 1024**2,
            }
            | shared,
            {
                "name": "standard",
                "sla_class": "default",
                "tiers": ["default", "flex"],
                "ttft_ms": 2000.0,
                "tpot_ms": 200.0,
                "weight": 1.0,
                "requests_per_min": 3000,
                "tokens_per_min": 2_000_000,
                "parallel_requests": 64,
                "adapters": 64,
                "adapter_bytes": 4 * 1024**3,
            }
            | shared,
            {
                "name": "premium",
                "sla_class": "priority",
                "tiers": ["priority", "default", "flex"],
                "ttft_ms": 500.0,
                "tpot_ms": 100.0,
                "weight": 4.0,
                "requests_per_min": None,
                "tokens_per_min": None,
                "parallel_requests": 256,
                "adapters": None,
                "adapter_bytes": None,
            }
            | shared,
        ],
    )


def _create_tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("plan", sa.Text, sa.ForeignKey("plans.name"), nullable=False),
        sa.Column("status", sa.Text, nullable=False, server_default="active"),
        sa.Column("trust_group", sa.Text),
        *_times(),
        sa.CheckConstraint("status IN ('active', 'suspended')", name="status"),
    )
    # A tenant reads its own row; only the operator writes any.
    op.execute("ALTER TABLE tenants ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE tenants FORCE ROW LEVEL SECURITY")
    app, admin = roles().app_role, roles().admin_role
    op.execute(
        f"CREATE POLICY tenant_rows ON tenants FOR SELECT TO {app} USING (id = {CURRENT_TENANT})"
    )
    op.execute(f"CREATE POLICY operator_rows ON tenants TO {admin} USING (true) WITH CHECK (true)")
    op.execute(f"GRANT SELECT ON tenants TO {app}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON tenants TO {admin}")


def _create_api_keys() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False, index=True),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text), nullable=False),
        sa.Column("expires_at", _TIME),
        sa.Column("revoked_at", _TIME),
        sa.Column("last_used_at", _TIME),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("tenant_id", "prefix"),
    )
    enable_tenant_isolation("api_keys")
    # Authentication asks before it knows the tenant: then a session sees one prefix, and only that.
    op.execute(
        f"CREATE POLICY key_lookup ON api_keys FOR SELECT TO {roles().app_role} "
        "USING (prefix = NULLIF(current_setting('app.key_prefix', true), ''))"
    )


def _create_audit_logs() -> None:
    op.create_table(
        "audit_logs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")),
        sa.Column("chain", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text),
        sa.Column("prev_hash", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.CheckConstraint("chain = coalesce(tenant_id, 'operator')", name="chain"),
    )
    # Under row-level security a tenant sees its own chain only, so this tells it nothing.
    op.create_index("uq_audit_logs_chain_seq", "audit_logs", ["chain", "seq"], unique=True)
    enable_tenant_isolation("audit_logs", append_only=True)
