"""Writes a database into a backup while it is used: every table at one moment. Rows of tables that
the operator's role may not read are read tenant by tenant, as the role of requests."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from psycopg import IsolationLevel, sql

from tenora_platform.backup.connections import Link, connected
from tenora_platform.backup.manifest import Sequence, Table
from tenora_platform.backup.place import BackupError, Place
from tenora_platform.db import DatabaseUrls
from tenora_platform.locks import hold, try_hold
from tenora_platform.registry.store_identity import DELETING, SWEEPING
from tenora_platform.usage.partitions import MONTHS_LOCK, month_of

_ONE = "tenora:backup"
_GZIP, _LEVEL = 31, 3


@dataclass(frozen=True, slots=True)
class Dumped:
    """What is known of a database at its moment."""

    at: datetime
    revision: str
    postgresql: str
    months: list[date]
    tables: list[Table]
    sequences: list[Sequence]


@contextmanager
def nothing_deleted(urls: DatabaseUrls) -> Iterator[Link]:
    """While the block runs no object is deleted from the store, no month of usage leaves the
    database, and no other backup runs. The server ends that with the connection, so a backup that
    is killed leaves nothing behind. Raises BackupError."""
    with connected(urls.owner) as link, link.transaction():
        if not try_hold(link, _ONE):
            raise BackupError("Another backup of this installation is running.")
        for name in (MONTHS_LOCK, SWEEPING, DELETING):  # waits for whoever is at it
            hold(link, name)
        yield link


class Snapshot:
    """The database at one moment, over three connections that see the same. Migrations wait until
    it is closed."""

    def __init__(self, urls: DatabaseUrls, tables: Iterable[str], links: ExitStack) -> None:
        self._tables = sorted(tables)
        self._owner, self._admin, self._app = (
            _reading(links, url) for url in (urls.owner, urls.admin, urls.app)
        )
        # The locks come before the snapshot: what is dropped between the two would be missing.
        self._owner.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
                sql.SQL(", ").join(map(sql.Identifier, self._tables))
            )
        )
        name, self._at = self._row(
            self._owner, "SELECT pg_export_snapshot(), statement_timestamp()"
        )
        for link in (self._admin, self._app):
            link.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))

    def dump(self, place: Place) -> Dumped:
        tenants = [str(row[0]) for row in self._admin.execute("SELECT id FROM tenants ORDER BY id")]
        tables = [self._dump(place, name, tenants) for name in self._tables]
        partitions = self._owner.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits"
            " WHERE inhparent = 'usage_events'::regclass"
        )
        months = [month_of(str(row[0])) for row in partitions]
        assert isinstance(self._at, datetime)
        return Dumped(
            at=self._at,
            revision=str(self._row(self._owner, "SELECT version_num FROM alembic_version")[0]),
            postgresql=str(self._row(self._owner, "SHOW server_version")[0]),
            months=sorted(month for month in months if month is not None),
            tables=tables,
            sequences=list(self._sequences()),
        )

    def _dump(self, place: Place, name: str, tenants: list[str]) -> Table:
        columns = columns_of(self._owner, name)
        query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(name)
        )
        (may_read,) = self._row(
            self._admin, "SELECT has_table_privilege(quote_ident(%s), 'SELECT')", name
        )
        counts: list[int] = []
        rows = (
            _copied(self._admin, query, counts)
            if may_read
            else self._of_each(tenants, query, counts)
        )
        file = place.write(f"database/{name}.copy.gz", _packed(rows))
        return Table(name=name, columns=columns, rows=sum(counts), file=file)

    def _of_each(
        self, tenants: list[str], query: sql.Composed, counts: list[int]
    ) -> Iterator[bytes]:
        for tenant in tenants:
            self._app.execute("SELECT set_config('app.tenant', %s, true)", (tenant,))
            yield from _copied(self._app, query, counts)

    def _sequences(self) -> Iterator[Sequence]:
        """Read after the snapshot, so that none is behind it."""
        for name in sequences_of(self._owner, self._tables):
            last, called = self._row(
                self._owner,
                sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(name)),
            )
            yield Sequence(name=name, last_value=int(str(last)), is_called=bool(called))

    @staticmethod
    def _row(link: Link, query: Any, *values: object) -> tuple[object, ...]:
        row = link.execute(query, values).fetchone()
        assert row is not None
        return row


def _reading(links: ExitStack, url: Any) -> Link:
    link = links.enter_context(connected(url))
    link.autocommit = False
    link.isolation_level = IsolationLevel.REPEATABLE_READ
    link.read_only = True
    return link


def columns_of(link: Link, table: str) -> list[str]:
    rows = link.execute(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = quote_ident(%s)::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum",
        (table,),
    )
    return [str(row[0]) for row in rows]


def sequences_of(link: Link, tables: Iterable[str]) -> list[str]:
    """Those that number the rows of these tables."""
    rows = link.execute(
        "SELECT s.relname FROM pg_class s JOIN pg_depend d ON d.objid = s.oid"
        " AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')"
        " JOIN pg_class t ON t.oid = d.refobjid"
        " WHERE s.relkind = 'S' AND s.relnamespace = current_schema()::regnamespace"
        " AND t.relname = ANY(%s) ORDER BY s.relname",
        (list(tables),),
    )
    return [str(row[0]) for row in rows]


def _copied(link: Link, query: sql.Composed, counts: list[int]) -> Iterator[bytes]:
    with link.cursor() as cursor:
        with cursor.copy(query) as copy:
            for block in copy:
                yield bytes(block)
        counts.append(cursor.rowcount)


def _packed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    for piece in pieces:
        if packed := packer.compress(piece):
            yield packed
    yield packer.flush()


def unpacked(pieces: Iterable[bytes], most: int) -> Iterator[bytes]:
    """At most so many bytes at once, however small they were packed. Raises BackupError."""
    packer = zlib.decompressobj(_GZIP)
    for piece in pieces:
        left = piece
        while left:
            try:
                yield packer.decompress(left, most)
            except zlib.error as error:
                raise BackupError(f"The backup is damaged: {error}.") from error
            left = packer.unconsumed_tail
