"""An index by which the last day of storage that is booked is found.

Revision: 0055, after 0054
"""

from __future__ import annotations

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_occupancy_events_meter_ends", "occupancy_events", ["meter", "ends"])


def downgrade() -> None:
    op.drop_index("ix_occupancy_events_meter_ends", "occupancy_events")
