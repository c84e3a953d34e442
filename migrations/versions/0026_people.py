"""People, what they belong to, invitations and sessions.

Revision: 0026, after 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import CURRENT_TENANT, enable_tenant_isolation, roles

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_ROLES = (
    "CASE WHEN tenant_id IS NULL"
    " THEN role IN ('owner', 'operator', 'billing', 'read_only', 'metrics')"
    " ELSE role IN ('owner', 'developer', 'billing', 'viewer') END"
)


def upgrade() -> None:
    _create_people()
    _create_memberships()
    _create_invitations()
    _create_sessions()


def _now(name: str) -> sa.Column[object]:
    return sa.Column(name, _TIME, nullable=False, server_default=sa.func.now())


def _create_people() -> None:
    op.create_table(
        "people",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("email", sa.Text),
        sa.Column("email_verified", sa.Boolean, nullable=False),
        sa.Column("name", sa.Text),
        _now("created_at"),
        _now("signed_in_at"),
        sa.UniqueConstraint("issuer", "subject"),
    )


def _create_memberships() -> None:
    op.create_table(
        "memberships",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")),
        sa.Column("person_id", sa.Text, sa.ForeignKey("people.id"), nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        _now("created_at"),
        sa.UniqueConstraint("tenant_id", "person_id"),
        sa.CheckConstraint(_ROLES, name="role"),
    )
    op.create_index("ix_memberships_person_id", "memberships", ["person_id"])
    op.create_index(
        "uq_memberships_operator",
        "memberships",
        ["person_id"],
        unique=True,
        postgresql_where=sa.text("tenant_id IS NULL"),
    )
    enable_tenant_isolation("memberships")
    # A tenant joins nobody: that is done where an invitation is accepted, by the operator's role.
    app, admin = roles().app_role, roles().admin_role
    op.execute(f"REVOKE INSERT ON memberships FROM {app}")
    # Of people, a tenant sees its members.
    op.execute("ALTER TABLE people ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE people FORCE ROW LEVEL SECURITY")
    op.execute(
        f"CREATE POLICY tenant_rows ON people FOR SELECT TO {app} USING (EXISTS (SELECT FROM"
        f" memberships m WHERE m.person_id = people.id AND m.tenant_id = {CURRENT_TENANT}))"
    )
    op.execute(f"CREATE POLICY operator_rows ON people TO {admin} USING (true) WITH CHECK (true)")
    op.execute(f"GRANT SELECT ON people TO {app}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON people TO {admin}")


def _create_invitations() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")),
        sa.Column("hash", sa.Text, nullable=False, index=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("email", sa.Text),
        sa.Column("created_by", sa.Text, nullable=False),
        _now("created_at"),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("used_at", _TIME),
        sa.Column("used_by", sa.Text, sa.ForeignKey("people.id")),
        sa.CheckConstraint(_ROLES, name="role"),
    )
    enable_tenant_isolation("invitations")


def _create_sessions() -> None:
    """The operator's alone: who asks is looked up before a tenant is known."""
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("hash", sa.Text, nullable=False, unique=True),
        sa.Column("person_id", sa.Text, sa.ForeignKey("people.id"), index=True),
        sa.Column("api_key_id", sa.Text, sa.ForeignKey("api_keys.id"), index=True),
        sa.Column("admin_key_id", sa.Text),
        sa.Column("key_prefix", sa.Text),
        sa.Column("address", sa.Text),
        sa.Column("user_agent", sa.Text),
        _now("created_at"),
        _now("last_used_at"),
        sa.Column("expires_at", _TIME, nullable=False, index=True),
        sa.CheckConstraint("num_nonnulls(person_id, api_key_id, admin_key_id) = 1", name="whose"),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON sessions TO {roles().admin_role}")
