"""A deleted tenant may be held: not erased until the operator confirms it, after a restore.

Revision: 0051, after 0049
"""

from __future__ import annotations

from alembic import op

revision = "0051"
down_revision = "0049"
branch_labels = None
depends_on = None

_REST = (
    "(deleted_at IS NULL) = (status_before IS NULL) "
    "AND (erased_at IS NULL OR deleted_at IS NOT NULL) "
    "AND (deleted_at IS NULL OR status = 'suspended')"
)


def upgrade() -> None:
    _check("(erase_after IS NULL OR deleted_at IS NOT NULL)")


def downgrade() -> None:
    """Who is held stays so: a version of before knows no other way to say it."""
    op.execute("ALTER TABLE tenants NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE tenants SET erase_after = '9999-12-31T00:00:00Z' "
        "WHERE deleted_at IS NOT NULL AND erase_after IS NULL"
    )
    op.execute("ALTER TABLE tenants FORCE ROW LEVEL SECURITY")
    _check("(deleted_at IS NULL) = (erase_after IS NULL)")


def _check(when: str) -> None:
    op.drop_constraint("deletion", "tenants", type_="check")
    op.create_check_constraint("deletion", "tenants", f"{when} AND {_REST}")
