"""Days of usage that moved once they were over are marked where they move, so that a reconciliation
finds them without a look at all others.

Revision: 0064, after 0063
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

from tenora_platform.isolation import roles

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None

_DAY_OF = {
    "usage_hours": "(hour AT TIME ZONE 'UTC')::date",
    "usage_days": "day",
    "engine_totals": "day",
    "ledger_transactions": "day",
}
_ROWS = {"INSERT": "NEW", "UPDATE": "OLD", "DELETE": "OLD"}


def _triggers() -> Iterator[tuple[str, str, str]]:
    """Name, table and event."""
    for table in _DAY_OF:
        for event in _ROWS:
            if table == "ledger_transactions" and event != "INSERT":  # it refuses the others
                continue
            yield f"note_moved_days_{event.lower()}", table, event


def upgrade() -> None:
    op.create_table(
        "moved_days",
        # A mark for each time: one that was made while a run looked is not the one it has seen.
        sa.Column("no", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("day", sa.Date, nullable=False),
    )
    op.execute(f"GRANT SELECT, INSERT, DELETE ON moved_days TO {roles().admin_role}")
    # NULL of earlier runs: the first one after this looks at every day once.
    op.add_column("reconciliations", sa.Column("settled_through", sa.Date))
    op.drop_table("reconciled_days")
    for table, day in _DAY_OF.items():
        # Days that are not over are looked at anyway.
        op.execute(
            f"""
            CREATE FUNCTION note_moved_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              INSERT INTO moved_days (tenant, day)
              SELECT DISTINCT tenant_id, {day} FROM moved
               WHERE {day} < (now() AT TIME ZONE 'UTC')::date;
              RETURN NULL;
            END $$
            """
        )
    for name, table, event in _triggers():
        op.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON {table} REFERENCING {_ROWS[event]} TABLE"
            f" AS moved FOR EACH STATEMENT EXECUTE FUNCTION note_moved_{table}()"
        )


def downgrade() -> None:
    for name, table, _ in _triggers():
        op.execute(f"DROP TRIGGER {name} ON {table}")
    for table in _DAY_OF:
        op.execute(f"DROP FUNCTION note_moved_{table}()")
    op.create_table(
        "reconciled_days",
        sa.Column("of_tenant", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column(
            "checked_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.func.now(),
        ),
    )
    op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON reconciled_days TO {roles().admin_role}")
    op.drop_column("reconciliations", "settled_through")
    op.drop_table("moved_days")
