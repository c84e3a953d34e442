"""Webhooks: who wants to be told of events, and what became of each delivery.

Revision: 0015, after 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import CURRENT_TENANT, roles

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")),  # NULL: the operator's
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False, server_default=""),
        sa.Column("types", sa.ARRAY(sa.Text)),  # NULL: of any
        sa.Column("secret", sa.Text, nullable=False),  # encrypted under the server's
        sa.Column("previous_secret", sa.Text),
        sa.Column("previous_expires_at", _TIME),
        sa.Column("disabled_at", _TIME),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", _TIME),
    )
    op.create_index("ix_webhook_endpoints_tenant_id", "webhook_endpoints", ["tenant_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("endpoint_id", sa.Text, sa.ForeignKey("webhook_endpoints.id"), nullable=False),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id")),  # the endpoint's
        sa.Column("event_id", sa.Text, sa.ForeignKey("events.id"), nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default="waiting"),
        sa.Column("attempts", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("next_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.Column("last_at", _TIME),
        sa.Column("last_status", sa.SmallInteger),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", _TIME, nullable=False, server_default=sa.func.now()),
        sa.UniqueConstraint("endpoint_id", "event_id"),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'dead')", name="state"),
    )
    waiting = sa.text("state = 'waiting'")
    op.create_index(
        "ix_webhook_deliveries_next_at", "webhook_deliveries", ["next_at"], postgresql_where=waiting
    )
    # Events that deliveries have not been made of yet; whatever stores an event, it gets here.
    op.create_table(
        "webhook_queue",
        sa.Column("event_id", sa.Text, sa.ForeignKey("events.id"), primary_key=True),
    )
    op.execute(
        """
        CREATE FUNCTION queue_event() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          INSERT INTO webhook_queue VALUES (NEW.id);
          RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER queue_event AFTER INSERT ON events "
        "FOR EACH ROW EXECUTE FUNCTION queue_event()"
    )
    _let_in()


def _let_in() -> None:
    """A tenant sees and writes its own; the operator's endpoints have none and are nobody's."""
    app, admin = roles().app_role, roles().admin_role
    own = f"tenant_id = {CURRENT_TENANT}"
    for table in ("webhook_endpoints", "webhook_deliveries"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(
            f"CREATE POLICY tenant_rows ON {table} TO {app} USING ({own}) WITH CHECK ({own})"
        )
        op.execute(
            f"CREATE POLICY operator_rows ON {table} TO {admin} USING (true) WITH CHECK (true)"
        )
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {app}, {admin}")
    op.execute(f"GRANT INSERT ON webhook_queue TO {app}")
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON webhook_queue TO {admin}")
