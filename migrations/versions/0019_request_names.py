"""Requests are found by the x-request-id that a client gave them.

Revision: 0019, after 0018
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Those of the server's making are not stored ("": an old event has none), and take no room.
    op.execute(
        "CREATE INDEX ix_usage_events_x_request_id ON usage_events (x_request_id) "
        "WHERE x_request_id <> ''"
    )
