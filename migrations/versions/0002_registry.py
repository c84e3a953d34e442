"""Adapters, their versions and aliases, and resumable uploads.

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from tenora_platform.isolation import enable_tenant_isolation

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_STATES = "('quarantined', 'validating', 'active', 'rejected', 'deprecated', 'revoked')"


def upgrade() -> None:
    _create_adapters()
    _create_versions()
    _create_aliases()
    _create_uploads()


def _id() -> sa.Column[str]:
    return sa.Column("id", sa.Text, primary_key=True)


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), nullable=False)


def _created() -> sa.Column[object]:
    return sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now())


def _create_adapters() -> None:
    op.create_table(
        "adapters",
        _id(),
        _tenant(),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("next_version", sa.Integer, nullable=False, server_default="1"),
        _created(),
        sa.Column("deleted_at", _TIME),
        # What other tables point at, so that a row can never point into another tenant.
        sa.UniqueConstraint("tenant_id", "id"),
    )
    # Versions and usage keep pointing at a deleted adapter; its name is free again.
    op.create_index(
        "uq_adapters_tenant_id_name",
        "adapters",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    enable_tenant_isolation("adapters")


def _create_versions() -> None:
    op.create_table(
        "adapter_versions",
        _id(),
        _tenant(),
        sa.Column("adapter_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("staging_key", sa.Text),  # where the upload waits for its check
        sa.Column("weights_sha256", sa.Text, nullable=False),
        sa.Column("digest", sa.Text),
        sa.Column("rank", sa.Integer),
        sa.Column("target_modules", sa.ARRAY(sa.Text)),
        sa.Column("report", JSONB),
        sa.Column("created_by", sa.Text),  # API key
        _created(),
        sa.Column("activated_at", _TIME),
        sa.Column("revoked_at", _TIME),
        sa.Column("released_at", _TIME),  # a revoked version's content has been given back
        sa.UniqueConstraint("tenant_id", "adapter_id", "number"),
        sa.ForeignKeyConstraint(["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"]),
        sa.CheckConstraint(f"state IN {_STATES}", name="state"),
        sa.CheckConstraint(
            "state NOT IN ('active', 'deprecated') OR (digest IS NOT NULL AND rank IS NOT NULL)",
            name="active_is_complete",
        ),
    )
    op.create_index(
        "ix_adapter_versions_pending",
        "adapter_versions",
        ["created_at"],
        postgresql_where=sa.text("state IN ('quarantined', 'validating')"),
    )
    op.create_index(
        "ix_adapter_versions_unreleased",
        "adapter_versions",
        ["revoked_at"],
        postgresql_where=sa.text("state = 'revoked' AND released_at IS NULL"),
    )
    op.create_index("ix_adapter_versions_digest", "adapter_versions", ["digest"])
    enable_tenant_isolation("adapter_versions")


def _create_aliases() -> None:
    op.create_table(
        "adapter_aliases",
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
        sa.Column("adapter_id", sa.Text, primary_key=True),
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("targets", JSONB, nullable=False),  # [{"version": 2, "weight": 100}]
        sa.Column("updated_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.ForeignKeyConstraint(["tenant_id", "adapter_id"], ["adapters.tenant_id", "adapters.id"]),
    )
    enable_tenant_isolation("adapter_aliases")


def _create_uploads() -> None:
    op.create_table(
        "uploads",
        _id(),
        _tenant(),
        sa.Column("status", sa.Text, nullable=False, server_default="pending"),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text),
        _created(),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.UniqueConstraint("tenant_id", "id"),
        sa.CheckConstraint(
            "status IN ('pending', 'completed', 'cancelled', 'expired', 'used')", name="status"
        ),
    )
    enable_tenant_isolation("uploads")
    op.create_table(
        "upload_parts",
        _id(),
        _tenant(),
        sa.Column("upload_id", sa.Text, nullable=False, index=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("position", sa.Integer),  # set when the upload is completed
        _created(),
        sa.ForeignKeyConstraint(["tenant_id", "upload_id"], ["uploads.tenant_id", "uploads.id"]),
    )
    enable_tenant_isolation("upload_parts")
