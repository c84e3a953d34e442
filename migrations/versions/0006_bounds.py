"""Dates and plans within bounds that every reader can bear; price versions can be withdrawn;
records that were set aside keep their bytes. Mends what was stored before there were bounds.

Revision: 0006, after 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_EARLIEST = "'2000-01-01T00:00:00Z'"
_LATEST = "'2200-01-01T00:00:00Z'"  # exclusive
_DAY_MS = 86_400_000
_SCOPE = [sa.text("coalesce(model, '')"), sa.text("coalesce(plan, '')"), "effective_from"]


def upgrade() -> None:
    _bound_prices()
    _bound_key_expiry()
    _bound_plans()
    op.add_column("usage_dead_letters", sa.Column("raw", sa.LargeBinary))


def _bound_prices() -> None:
    op.add_column("price_versions", sa.Column("withdrawn_at", sa.DateTime(timezone=True)))
    op.drop_index("uq_price_versions_scope_from", "price_versions")
    # A version that no event could have met goes; one that began before all times begins with them.
    op.execute(
        "UPDATE price_versions SET withdrawn_at = now() "
        f"WHERE effective_from >= {_LATEST} OR effective_to <= {_EARLIEST}"
    )
    held = "withdrawn_at IS NULL"
    op.execute(
        f"UPDATE price_versions SET effective_from = {_EARLIEST} "
        f"WHERE {held} AND effective_from < {_EARLIEST}"
    )
    op.execute(
        f"UPDATE price_versions SET effective_to = NULL WHERE {held} AND effective_to >= {_LATEST}"
    )
    op.create_index(
        "uq_price_versions_scope_from",
        "price_versions",
        _SCOPE,
        unique=True,
        postgresql_where=sa.text(held),
    )
    op.create_check_constraint(
        "bounds",
        "price_versions",
        f"withdrawn_at IS NOT NULL OR (effective_from >= {_EARLIEST} "
        f"AND coalesce(effective_to, effective_from) < {_LATEST})",
    )


def _bound_key_expiry() -> None:
    # The owner is bound by row-level security too, and sees no tenant's rows.
    op.execute("ALTER TABLE api_keys NO FORCE ROW LEVEL SECURITY")
    op.execute(
        "UPDATE api_keys SET expires_at = "
        f"least(greatest(expires_at, {_EARLIEST}), timestamptz {_LATEST} - interval '1 second') "
        f"WHERE expires_at < {_EARLIEST} OR expires_at >= {_LATEST}"
    )
    op.execute("ALTER TABLE api_keys FORCE ROW LEVEL SECURITY")


def _bound_plans() -> None:
    op.drop_constraint("weight", "plans", type_="check")
    for column, least, most in (
        ("weight", 0.01, 100),
        ("memory_share", 0.001, 1),
        ("ttft_ms", 1, _DAY_MS),
        ("tpot_ms", 0.01, _DAY_MS),
    ):
        # NaN is more than any number here.
        op.execute(
            f"UPDATE plans SET {column} = least(greatest({column}, {least}), {most}) "
            f"WHERE {column} IS NOT NULL"
        )
        op.create_check_constraint(column, "plans", f"{column} BETWEEN {least} AND {most}")
