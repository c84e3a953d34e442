"""Connections for a backup and a restore: without the time limits of requests, and with settings by
which values are written and read alike on any server. It knows no table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy.engine import URL

from tenora_platform.backup.place import BackupError, first_line
from tenora_platform.db import libpq_url, with_options

Link = psycopg.Connection[tuple[object, ...]]

_OPTIONS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "10min",
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}


@contextmanager
def connected(url: URL) -> Iterator[Link]:
    """One that commits each statement. Raises BackupError for what the database refuses within."""
    try:
        with psycopg.connect(
            libpq_url(with_options(url, _OPTIONS)),
            autocommit=True,
            connect_timeout=10,
            row_factory=tuple_row,
        ) as link:
            yield link
    except psycopg.Error as error:
        raise BackupError(f"The database could not be used: {first_line(error)}.") from error
