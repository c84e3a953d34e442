"""What migrations call to make an index on a table that may be large and in use: writers go on
meanwhile. It knows indexes, not tables."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

_PATIENCE_S = 600
"""For transactions that began before the index: nobody waits behind one who waits for them."""
_IS_VALID = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
_PARTITIONS = text(
    "SELECT c.relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid "
    "WHERE inhparent = to_regclass(:name) ORDER BY 1"
)
_HAS_ITS = text(
    "SELECT EXISTS (SELECT FROM pg_inherits h JOIN pg_index i ON i.indexrelid = h.inhrelid "
    "WHERE h.inhparent = to_regclass(:parent) AND i.indrelid = to_regclass(:part))"
)
"""Whether a partition has an index of its parent's, whatever that is called."""


def create_index_beside_writers(name: str, table: str, on: str) -> None:
    """`on`: all that follows the table's name, such as `(tenant_id, id)` or `USING brin (at)`. Of a
    table in partitions, one after the other. The migration's transaction so far is committed; one
    that was cut off may be run again."""
    with op.get_context().autocommit_block():
        before = op.get_bind().scalar(text("SHOW lock_timeout"))
        op.execute(f"SET lock_timeout = '{_PATIENCE_S}s'")
        try:
            _create(name, table, on)
        finally:
            op.execute(f"SET lock_timeout = '{before}'")


def _create(name: str, table: str, on: str) -> None:
    parts = list(op.get_bind().scalars(_PARTITIONS, {"name": table}))
    if not parts:
        _create_one(name, table, on)
        return
    op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON ONLY {table} {on}")  # later ones have it
    for part in parts:
        own = f"{name}_{part.removeprefix(f'{table}_')}"
        if not op.get_bind().scalar(_HAS_ITS, {"parent": name, "part": part}):
            _create_one(own, part, on)
            op.execute(f"ALTER INDEX {name} ATTACH PARTITION {own}")


def _create_one(name: str, table: str, on: str) -> None:
    """One that was left unfinished is made anew."""
    is_valid = op.get_bind().scalar(_IS_VALID, {"name": name})
    if is_valid is False:
        op.execute(f"DROP INDEX CONCURRENTLY {name}")
    if not is_valid:
        op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} {on}")
