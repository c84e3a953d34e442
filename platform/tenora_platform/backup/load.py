"""Fills an empty, migrated database from a backup in one transaction, whole or not at all. Foreign
keys are checked; triggers, which refuse changes and write rows of their own, are not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from graphlib import TopologicalSorter

from psycopg import sql

from tenora_platform.backup.connections import Link, connected
from tenora_platform.backup.dump import columns_of, sequences_of, unpacked
from tenora_platform.backup.manifest import Manifest, Table
from tenora_platform.backup.place import BackupError, Place
from tenora_platform.bootstrap import UNFINISHED
from tenora_platform.db import DatabaseUrls

_PIECE_BYTES = 1024 * 1024


def load(urls: DatabaseUrls, place: Place, manifest: Manifest) -> None:
    """Raises BackupError; then nothing was loaded. What migrations put into the tables goes."""
    with connected(urls.owner) as link:
        _make_months(link, manifest.months)
        tables = {table.name: table for table in manifest.tables}
        _compare(link, manifest, tables)
        names = sql.SQL(", ").join(map(sql.Identifier, tables))
        with link.transaction(), _unguarded(link):
            link.execute(sql.SQL("TRUNCATE {}").format(names))
            for name in _in_order(link, tables):
                _fill(link, place, tables[name])
            for each in manifest.sequences:
                link.execute(
                    "SELECT setval(quote_ident(%s)::regclass, %s, %s)",
                    (each.name, each.last_value, each.is_called),
                )
        link.execute(sql.SQL("ANALYZE {}").format(names))


def _make_months(link: Link, months: list[date]) -> None:
    for month in months:
        link.execute("SELECT create_usage_month(%s)", (month,))


def _compare(link: Link, manifest: Manifest, tables: dict[str, Table]) -> None:
    """Raises BackupError unless the schema is the one that was dumped."""
    found = {name: columns_of(link, name) for name in _tables(link)}
    said = {name: table.columns for name, table in tables.items()}
    if {name: sorted(each) for name, each in found.items()} != {
        name: sorted(each) for name, each in said.items()
    } or sequences_of(link, tables) != [each.name for each in manifest.sequences]:
        raise BackupError(
            f"The backup was made of another schema than that of revision {manifest.revision}: "
            "tables or columns of that database had been changed by hand."
        )


def _tables(link: Link, *, partitions: bool = False) -> list[str]:
    own = ("alembic_version", UNFINISHED)
    found = relations(link, "rp", partitions=partitions)
    return [name for name in found if name not in own]


def relations(link: Link, kinds: str, *, partitions: bool = False) -> list[str]:
    """What the installation's schema has of these kinds, as PostgreSQL calls them, but for what an
    extension brought."""
    rows = link.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        " AND relkind = ANY(%s) AND (%s OR NOT relispartition) AND NOT EXISTS (SELECT FROM"
        " pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid"
        " AND deptype = 'e') ORDER BY relname",
        (list(kinds), partitions),
    )
    return [str(row[0]) for row in rows]


@contextmanager
def _unguarded(link: Link) -> Iterator[None]:
    """Within the transaction no trigger of ours runs and row-level security does not bind the
    owner; where the transaction fails it is as if it had never been so."""
    names = [sql.Identifier(name) for name in _tables(link, partitions=True)]
    forced = [
        sql.Identifier(str(row[0]))
        for row in link.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
            " AND relkind IN ('r', 'p') AND relforcerowsecurity"
        )
    ]
    for name in names:
        link.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(name))
    for name in forced:
        link.execute(sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(name))
    yield
    for name in forced:
        link.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(name))
    for name in names:
        link.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(name))


def _in_order(link: Link, tables: dict[str, Table]) -> Iterator[str]:
    """Each after those that it refers to."""
    order = TopologicalSorter({name: set[str]() for name in tables})
    for of, to in link.execute(
        "SELECT c.relname, t.relname FROM pg_constraint"
        " JOIN pg_class c ON c.oid = conrelid JOIN pg_class t ON t.oid = confrelid"
        " WHERE contype = 'f' AND conparentid = 0 AND conrelid <> confrelid"
        " AND c.relnamespace = current_schema()::regnamespace"
    ):
        order.add(str(of), str(to))
    return (name for name in order.static_order() if name in tables)


def _fill(link: Link, place: Place, table: Table) -> None:
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, table.columns))
    )
    with link.cursor() as cursor:
        with cursor.copy(query) as copy:
            for piece in unpacked(place.read(table.file), _PIECE_BYTES):
                copy.write(piece)
        if cursor.rowcount != table.rows:
            raise BackupError(
                f"{table.name} has {cursor.rowcount} rows in the backup, and had {table.rows}."
            )
