"""The keys that sign receipts: made, published, rotated, revoked. A key is published before it
signs, so that no process and no verifier meets one it cannot know; it stays published when another
has taken over, without its private part. It knows no receipt."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database, plain_reason
from tenora_platform.errors import ConflictError, NotFoundError, UnavailableError
from tenora_platform.locks import lock
from tenora_platform.receipts.keys import key_id
from tenora_platform.receipts.tables import SigningKeyRow
from tenora_platform.secret import ServerSecret
from tenora_platform.single_flight import SingleFlight

KEPT_S = 5.0
PUBLISHED_FIRST = timedelta(seconds=60)
"""Of a new key, before it signs: longer than any process keeps what it has read."""
_SIGNED_LAST = timedelta(hours=1)  # so long after its successor began a key cannot sign any more
_LOCK = "signing-keys"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Signer:
    kid: str
    key: Ed25519PrivateKey


class SigningKeys:
    """What the process has read is kept for seconds. While the database is away, what was last
    read holds."""

    def __init__(self, db: Database, secret: ServerSecret) -> None:
        self._db = db
        self._seal = Fernet(urlsafe_b64encode(secret.key("signing-keys")))
        self._rows: Sequence[SigningKeyRow] | None = None
        self._read_at = -KEPT_S
        self._flights: SingleFlight[Sequence[SigningKeyRow]] = SingleFlight()

    async def published(self) -> list[bytes]:
        """The public keys, newest first. The first call ever makes the first key."""
        return [row.public_key for row in await self._all()]

    async def signer(self) -> Signer:
        """The key that signs now. Raises UnavailableError if its private part cannot be read."""
        row = current(await self._all(), datetime.now(UTC))
        try:
            if row is None or row.sealed is None:
                raise InvalidToken
            return Signer(row.kid, Ed25519PrivateKey.from_private_bytes(self._open(row.sealed)))
        except InvalidToken:
            raise UnavailableError(
                "The signing key cannot be read, because the server's secret has changed since "
                "it was made. The operator can create a new one with POST "
                "/admin/v1/signing_keys/rotate.",
                code="signing_key_unreadable",
            ) from None

    def _open(self, sealed: bytes) -> bytes:
        return self._seal.decrypt(sealed)

    async def _all(self) -> Sequence[SigningKeyRow]:
        if self._rows is not None and time.monotonic() - self._read_at < KEPT_S:
            return self._rows
        return await self._flights.run("keys", self._read)

    async def _read(self) -> Sequence[SigningKeyRow]:
        try:
            async with self._db.admin_session() as session:
                rows = await list_keys(session)
                if not rows:
                    await lock(session, _LOCK)
                    rows = await list_keys(session) or [self._add(session, datetime.now(UTC))]
                    await session.flush()
            self._rows = rows
        except (SQLAlchemyError, OSError) as error:
            if self._rows is None:
                raise
            _log.warning("signing keys could not be read", reason=plain_reason(error))
        self._read_at = time.monotonic()
        return self._rows

    async def rotate(self, session: AsyncSession) -> SigningKeyRow:
        """A new key, which signs once it has been published for a while; at once where no other
        can. It does not need the server secret of the keys before it."""
        await lock(session, _LOCK)
        now = datetime.now(UTC)
        row = current(await list_keys(session), now)
        usable = row is not None and row.sealed is not None and self._opens(row.sealed)
        new = self._add(session, now + PUBLISHED_FIRST if usable else now)
        await session.flush()
        await forget_private(session)
        self.forget()
        return new

    def _opens(self, sealed: bytes) -> bool:
        try:
            return bool(self._open(sealed))
        except InvalidToken:
            return False

    async def revoke(self, session: AsyncSession, kid: str) -> SigningKeyRow:
        """Take a key back: it is published no more, and what it signed does not verify. Raises
        NotFoundError; ConflictError for the only one."""
        await lock(session, _LOCK)
        rows = await list_keys(session)
        row = next((each for each in rows if each.kid == kid), None)
        if row is None:
            raise NotFoundError(f"There is no signing key {kid[:80]!r}.", param="kid")
        if not any(each.sealed for each in rows if each.kid != kid) and row.sealed is not None:
            raise ConflictError(
                "This is the only key that can sign. Rotate the signing key first.",
                code="last_signing_key",
            )
        row.revoked_at, row.sealed = datetime.now(UTC), None
        await session.flush()
        self.forget()
        return row

    def forget(self) -> None:
        """What was read: the next call reads anew."""
        self._read_at = -KEPT_S

    def _add(self, session: AsyncSession, signs_from: datetime) -> SigningKeyRow:
        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        row = SigningKeyRow(
            kid=key_id(public),
            public_key=public,
            sealed=self._seal.encrypt(private.private_bytes_raw()),
            signs_from=signs_from,
            created_at=datetime.now(UTC),
        )
        session.add(row)
        return row


def current(rows: Sequence[SigningKeyRow], now: datetime) -> SigningKeyRow | None:
    """Of keys, newest first, the one that signs: the last whose time has come; where none's has,
    the first whose time comes."""
    able = [row for row in rows if row.sealed is not None]
    begun = [row for row in able if row.signs_from <= now]
    return begun[0] if begun else able[-1] if able else None


async def list_keys(session: AsyncSession) -> list[SigningKeyRow]:
    """Those that are published, newest first."""
    query = (
        select(SigningKeyRow)
        .where(SigningKeyRow.revoked_at.is_(None))
        .order_by(SigningKeyRow.signs_from.desc(), SigningKeyRow.kid)
    )
    return list(await session.scalars(query))


async def forget_private(session: AsyncSession) -> None:
    """The private parts of keys that another one has taken over from: nobody signs the past."""
    now = datetime.now(UTC)
    begun = [row for row in await list_keys(session) if row.signs_from <= now - _SIGNED_LAST]
    over = [row.kid for row in begun[1:] if row.sealed is not None]
    if over:
        statement = update(SigningKeyRow).where(SigningKeyRow.kid.in_(over)).values(sealed=None)
        await session.execute(statement)
