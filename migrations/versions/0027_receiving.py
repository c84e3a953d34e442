"""Uploads that are on their way in with the form itself: a row that reserves their room.

Revision: 0027, after 0026
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_STATUSES = "('pending', 'completed', 'cancelled', 'expired', 'used', 'receiving')"


def upgrade() -> None:
    op.execute(
        "ALTER TABLE uploads DROP CONSTRAINT ck_uploads_status, "
        f"ADD CONSTRAINT ck_uploads_status CHECK (status IN {_STATUSES})"
    )
