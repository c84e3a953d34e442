"""Prices that nobody has set are taken back where nothing was ever charged by them: a fresh
installation bills nothing. And versions of which the content is damaged.

Revision: 0040, after 0039
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_METERS = (
    "uncached_prefill",
    "cached_prefill",
    "output",
    "cold_load",
    "device_residency",
    "host_residency",
    "stored",
)
_CHARGED = ("usage_days", "usage_volumes", "invoice_lines")
"""Whatever was charged by a price list is in one of these, for ever."""


def upgrade() -> None:
    op.add_column("adapter_versions", sa.Column("damaged_at", sa.DateTime(timezone=True)))
    op.create_index(
        "ix_adapter_versions_damaged",
        "adapter_versions",
        ["damaged_at"],
        postgresql_where=sa.text("damaged_at IS NOT NULL"),
    )
    with _unbound("price_versions", "prices", *_CHARGED):
        if _is_unused():
            _make_free()


def _is_unused() -> bool:
    """The list of migration 0003 is the only one, as it was made, and nothing refers to it."""
    charged = " UNION ALL ".join(
        f"SELECT 1 FROM {table} WHERE price_version_no = v.no" for table in _CHARGED
    )
    found = op.get_bind().execute(
        sa.text(
            "SELECT (SELECT count(*) FROM price_versions) = 1 AND count(*) = 1 "
            "FROM price_versions v WHERE id = 'price_default' AND effective_to IS NULL "
            f"AND withdrawn_at IS NULL AND NOT EXISTS ({charged})"
        )
    )
    return bool(found.scalar_one())


def _make_free() -> None:
    """With a list nothing waits for a price; the operator's own takes its place from its day on."""
    op.execute("ALTER TABLE prices DISABLE TRIGGER append_only")
    op.execute("DELETE FROM prices WHERE price_version_id = 'price_default'")
    op.execute("DELETE FROM price_versions WHERE id = 'price_default'")
    op.execute("ALTER TABLE prices ENABLE TRIGGER append_only")
    op.execute(
        "INSERT INTO price_versions (id, currency, effective_from) "
        "VALUES ('price_free', 'USD', '2020-01-01T00:00:00Z')"
    )
    meters = ", ".join(f"('{meter}')" for meter in _METERS)
    op.execute(
        "INSERT INTO prices (price_version_id, meter, per_million) "
        f"SELECT 'price_free', m.meter, 0 FROM (VALUES {meters}) AS m (meter)"
    )


@contextmanager
def _unbound(*tables: str) -> Iterator[None]:
    """Row-level security does not bind the owner meanwhile."""
    for table in tables:
        op.execute(f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY")
    yield
    for table in tables:
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")


def downgrade() -> None:
    """The prices stay as they are: the version before takes any list."""
    op.drop_column("adapter_versions", "damaged_at")
