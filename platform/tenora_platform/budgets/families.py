"""Remembers which keys a key comes from, so that what the books tell of one counts for all of them.
That never changes, and it knows no limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select

from tenora_platform.budgets.accounts import Charge
from tenora_platform.db import Database
from tenora_platform.tenants.tables import ApiKeyRow

_KNOWN_MAX = 100_000


class Families:
    """In one process."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known: dict[str, tuple[str, ...]] = {}

    async def whole(self, charges: Sequence[Charge]) -> list[Charge]:
        """The same, each with all the keys that it counts for. Raises SQLAlchemyError."""
        unknown = {key for each in charges for key in each.keys[:1]} - self._known.keys()
        if unknown:
            await self._look_up(unknown)
        return [
            replace(each, keys=self._known[each.keys[0]]) if each.keys else each for each in charges
        ]

    async def _look_up(self, key_ids: set[str]) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known = {}
        async with self._db.admin_session() as session:
            rows = await session.execute(
                select(ApiKeyRow.id, ApiKeyRow.lineage).where(ApiKeyRow.id.in_(key_ids))
            )
            found = {key_id: tuple(lineage) for key_id, lineage in rows}
        self._known |= {key: (key, *found.get(key, ())) for key in key_ids}
