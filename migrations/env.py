"""Runs the revisions over the connection that `tenora_platform.bootstrap` hands in, which holds the
advisory lock. It makes no connection of its own."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)

context.configure(
    connection=connection,
    target_metadata=context.config.attributes["metadata"],
    version_table_schema=context.config.attributes["installation"].schema,
    compare_type=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
