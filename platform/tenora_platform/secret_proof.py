"""Whether a database was written under this server secret: by its check value, and by the audit log
in one from before there was that value. Changes nothing."""

from __future__ import annotations

import hmac

from sqlalchemy import Connection, select, text

from tenora_platform.db import DatabaseUrls

_ENTRIES = 20
"""Of which one has to fit: a changed entry is `audit verify`'s matter."""

_OWN_TABLES = ("alembic_version", "restore_unfinished")
_RELATIONS = text(
    "SELECT relname FROM pg_class WHERE relnamespace = CAST(:schema AS regnamespace) "
    "AND relkind IN ('r', 'p', 'v', 'm', 'f') AND relname <> ALL(:own) "
    "AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass "
    "AND objid = pg_class.oid AND deptype = 'e') ORDER BY relname LIMIT 1"
)


class IdentityGoneError(Exception):
    """The row that says which database this is has been removed."""


def secret_check(urls: DatabaseUrls) -> str:
    """What a database keeps of its secret."""
    return urls.secret.mac("secret-check", urls.installation.name)[:32]


def has_identity(connection: Connection) -> bool:
    return connection.scalar(text("select to_regclass('database_identity')")) is not None


def table_of_others(connection: Connection, urls: DatabaseUrls) -> str | None:
    """A table of the installation's schema, which no migration of ours has made yet. What an
    extension brought is nobody's."""
    values = {"schema": urls.installation.schema, "own": list(_OWN_TABLES)}
    found: str | None = connection.scalar(_RELATIONS, values)
    connection.commit()
    return found


def is_proved(connection: Connection, urls: DatabaseUrls) -> bool | None:
    """Whether the database was written under this secret, None where nothing tells. The operator
    clears the check value to accept a new secret. Raises IdentityGoneError."""
    try:
        if has_identity(connection):
            known = connection.scalars(text("select secret_check from database_identity")).all()
            if not known:
                raise IdentityGoneError
            return known[0] in (None, secret_check(urls))
        return _fits_audit_log(connection, urls)
    finally:
        connection.rollback()


def _fits_audit_log(connection: Connection, urls: DatabaseUrls) -> bool | None:
    # Imported late: a supervisor, which lives as long as the platform, has no use for them.
    from tenora_platform.audit.service import AuditLog
    from tenora_platform.audit.tables import AuditRow

    if connection.scalar(text("select to_regclass('audit_logs')")) is None:
        return None
    query = select(AuditRow.__table__).order_by(AuditRow.at.desc()).limit(_ENTRIES)
    rows = connection.execute(query).all()
    if not rows:  # they are hidden from an owner whom row-level security binds; this is rolled back
        connection.execute(text("set local lock_timeout = '30s'"))
        connection.execute(text("alter table audit_logs no force row level security"))
        rows = connection.execute(query).all()
    log = AuditLog(urls.secret)
    entries = [AuditRow(**row._mapping) for row in rows]
    if not entries:
        return None
    return any(hmac.compare_digest(each.hash, log.hash_of(each)) for each in entries)
