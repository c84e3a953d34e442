"""What is kept of a key, a tenant's or the operator's: the HMAC of its secret and, while one secret
takes over from another, of both. It knows neither whose key it is nor what it allows."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, DateTime, Text, and_, func, or_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from tenora_platform.db import is_read_only
from tenora_platform.errors import BadRequestError, ConflictError, UnauthorizedError
from tenora_platform.keys import NewKey, hash_key, make_key
from tenora_platform.secret import ServerSecret

_MAKERS = {"created_by", "secret_by", "previous_by"}
UNTOLD = frozenset(
    {"created_at", "lineage", "last_used_at", "hash", "previous_hash", *_MAKERS},
)
"""Columns that the audit log does not get."""
_LAST_USED_EVERY = timedelta(seconds=60)
_Time = DateTime(timezone=True)


class KeptKey:
    """The columns of a key, beside whose it is and what it may do."""

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    prefix: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(Text)
    previous_prefix: Mapped[str | None] = mapped_column(Text)  # of the secret before this one,
    previous_hash: Mapped[str | None] = mapped_column(Text)
    previous_expires_at: Mapped[datetime | None] = mapped_column(_Time)  # until then valid as well
    expires_at: Mapped[datetime | None] = mapped_column(_Time)
    revoked_at: Mapped[datetime | None] = mapped_column(_Time)
    last_used_at: Mapped[datetime | None] = mapped_column(_Time)
    created_at: Mapped[datetime] = mapped_column(_Time, server_default=func.now())
    created_by: Mapped[str | None] = mapped_column(Text)  # as the audit log names who asks
    secret_by: Mapped[str | None] = mapped_column(Text)  # who was given the secret by a rotation,
    previous_by: Mapped[str | None] = mapped_column(Text)  # and the one before it

    @property
    def previous(self) -> dict[str, object] | None:
        """The other secret, while it is good."""
        if self.previous_expires_at is None or has_passed(self.previous_expires_at):
            return None
        return {"prefix": self.previous_prefix, "expires_at": self.previous_expires_at}


KeyT = TypeVar("KeyT", bound=KeptKey)


def of_prefix(table: type[KeptKey], prefix: str) -> ColumnElement[bool]:
    """The condition that finds a key by either of its secrets' prefixes."""
    return or_(table.prefix == prefix, table.previous_prefix == prefix)


def known_to(table: type[KeptKey], makers: Collection[str]) -> ColumnElement[bool]:
    """The condition that finds the keys that have not been revoked and of which any of these actors
    made the key or was given a secret that it has."""
    return and_(
        table.revoked_at.is_(None),
        or_(
            table.created_by.in_(makers),
            table.secret_by.in_(makers),
            table.previous_by.in_(makers) & (table.previous_expires_at > func.now()),
        ),
    )


def only_previous_is_known_to(row: KeptKey, makers: Collection[str]) -> bool:
    """Whether the actors know no more of it than the secret before this one."""
    return row.created_by not in makers and row.secret_by not in makers


def end_previous(row: KeptKey) -> str | None:
    """End the secret before this one; its prefix."""
    prefix, row.previous_prefix = row.previous_prefix, None
    row.previous_hash = row.previous_expires_at = row.previous_by = None
    return prefix


def verified(rows: Iterable[KeyT], digest: str) -> tuple[KeyT, datetime | None]:
    """The key whose secret this is, and until when the secret is good. Raises UnauthorizedError
    for none, a revoked and an expired one."""
    for row in rows:
        for prefix, kept in ((row.prefix, row.hash), (row.previous_prefix, row.previous_hash)):
            if prefix is not None and kept is not None and hmac.compare_digest(kept, digest):
                try:
                    return row, good_until(row, prefix)
                except UnauthorizedError as error:
                    error.tenant_id = getattr(row, "tenant_id", None)
                    raise
    raise UnauthorizedError("Invalid API key.")


def good_until(row: KeptKey, prefix: str | None) -> datetime | None:
    """Until when the key's secret of this prefix is good; None: for ever. Raises UnauthorizedError
    for a key that was revoked or has expired, and for a secret that has ended."""
    until = row.expires_at
    if prefix != row.prefix:
        if prefix != row.previous_prefix or row.previous_expires_at is None:
            raise UnauthorizedError(
                "This API key has been rotated; use its new secret.", code="key_rotated"
            )
        until = min(row.previous_expires_at, until or row.previous_expires_at)
    if row.revoked_at is not None:
        raise UnauthorizedError(
            "This API key has been revoked; use another key.", code="key_revoked"
        )
    if has_passed(until):
        raise UnauthorizedError("This API key has expired; use another key.", code="key_expired")
    return until


async def note_use(session: AsyncSession, row: KeptKey) -> None:
    """Write down that it was used, at most once in `_LAST_USED_EVERY`; not in a database that is
    read-only, where the key is as good as ever."""
    table, now = type(row), datetime.now(UTC)
    if row.last_used_at is not None and row.last_used_at >= now - _LAST_USED_EVERY:
        return
    if await is_read_only(session):
        return
    stale = or_(table.last_used_at.is_(None), table.last_used_at < now - _LAST_USED_EVERY)
    await session.execute(update(table).where(table.id == row.id, stale).values(last_used_at=now))


def new_secret(kind: str, secret: ServerSecret) -> tuple[NewKey, dict[str, str]]:
    """A new secret, and the columns that keep it."""
    made = make_key(kind)
    return made, {"prefix": made.prefix, "hash": hash_key(made.text, secret)}


def rotate(row: KeptKey, kept: dict[str, str], overlap: timedelta, by: str) -> None:
    """Give the key a new secret, which `by` is told; the one so far stays good for `overlap`, and
    for nothing at 0. Raises ConflictError for a key that has ended, or while two secrets are good
    already: with an overlap the older would be cut off in use."""
    now = datetime.now(UTC)
    if row.revoked_at is not None or has_passed(row.expires_at):
        raise ConflictError(
            "This key has been revoked or has expired; create a new one.", code="key_ended"
        )
    if overlap and row.previous_expires_at is not None and row.previous_expires_at > now:
        until = row.previous_expires_at.isoformat(timespec="seconds")
        raise ConflictError(
            f"The previous secret is still valid until {until}. Rotate after that, or with "
            "overlap_s 0, which ends both current secrets at once.",
            code="rotation_in_progress",
        )
    row.previous_prefix, row.previous_hash = (row.prefix, row.hash) if overlap else (None, None)
    row.previous_expires_at = now + overlap if overlap else None
    row.previous_by, row.secret_by = row.secret_by if overlap else None, by
    row.prefix, row.hash = kept["prefix"], kept["hash"]


def require_future(expires_at: datetime | None) -> None:
    """Raises BadRequestError."""
    if has_passed(expires_at):
        raise BadRequestError("expires_at must be in the future.", param="expires_at")


def has_passed(time: datetime | None) -> bool:
    return time is not None and time <= datetime.now(UTC)


def told(row: KeptKey) -> dict[str, object]:
    """The row as the audit log keeps it, without anything of a secret."""
    columns = (column.key for column in row.__table__.columns)  # type: ignore[attr-defined]
    return {name: getattr(row, name) for name in columns if name not in UNTOLD}
