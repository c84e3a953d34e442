"""Which admin keys there are: the configured ones, which are owners' for as long as the server is
set up with them, and those in the database. It turns a token into who asks."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database
from tenora_platform.errors import UnauthorizedError
from tenora_platform.kept_keys import good_until, note_use, verified
from tenora_platform.keys import hash_key, key_prefix
from tenora_platform.operators import repository
from tenora_platform.operators.roles import AdminContext
from tenora_platform.operators.tables import AdminKeyRow
from tenora_platform.secret import ServerSecret


class AdminKeys:
    """Asks the database for every request of an operator's: there are few, and so an ended key is
    refused everywhere at once. The configured keys need no database."""

    def __init__(self, db: Database, secret: ServerSecret, configured: Sequence[str]) -> None:
        self._db = db
        self._secret = secret
        self._configured = {digest[:12]: digest for digest in configured}

    @property
    def configured_ids(self) -> tuple[str, ...]:
        """What the configured keys are called; they are owners'."""
        return tuple(self._configured)

    async def find(self, token: str) -> AdminContext | None:
        """Who asks; None if this is no admin key. Raises UnauthorizedError for one that has
        ended."""
        digest = hash_key(token, self._secret)
        for key_id, known in self._configured.items():
            if hmac.compare_digest(digest, known):
                return AdminContext(key_id=key_id, role="owner")
        prefix = key_prefix(token, kind="tna")
        if prefix is None:
            return None
        async with self._db.admin_session() as session:
            row, _ = verified(await repository.find_keys(session, prefix), digest)
            await note_use(session, row)
            return AdminContext(key_id=row.id, key_prefix=prefix, role=row.role)

    async def of_id(self, session: AsyncSession, key_id: str, prefix: str | None) -> AdminContext:
        """Whose key this is, shown by its secret of that prefix. Raises UnauthorizedError for one
        that has ended."""
        admin = await self.still(session, key_id, prefix)
        if prefix is not None:
            await note_use(session, await session.get_one(AdminKeyRow, key_id))
        return admin

    async def still(self, session: AsyncSession, key_id: str, prefix: str | None) -> AdminContext:
        """The same, of what was derived from the key: that is no use of it."""
        if prefix is None:
            if key_id not in self._configured:
                raise UnauthorizedError(
                    "This admin key has been revoked or has expired; use another key."
                )
            return AdminContext(key_id=key_id, role="owner")
        row = await session.get(AdminKeyRow, key_id)
        if row is None:
            raise UnauthorizedError("Invalid API key.")
        good_until(row, prefix)
        return AdminContext(key_id=key_id, key_prefix=prefix, role=row.role)
