"""Whether object store and database belong together. The store holds a record of its database: the
database's random id and its generation, which the database raises all the time. A database that was
made anew has another id, one that was restored a lower generation. Then nothing that rows alone
decide may be removed from the store, until the operator adopts it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import msgspec
import obstore
import structlog
from msgspec.structs import replace
from obstore.exceptions import BaseError
from obstore.store import ObjectStore
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.db import Database, plain_reason
from tenora_platform.locks import lock, try_lock_shared
from tenora_platform.registry.identity_table import DatabaseIdentityRow
from tenora_platform.registry.inventory import CONTENTS, take_inventory
from tenora_platform.registry.store_told import REMEDY, STRANGE_USAGE, StoreTold

OBJECT = "tenora-database"
EVERY_S = 300.0
"""How often the generation rises: an older database is known by it, unless it is younger than
this. An object is older than that before a sweep takes it."""

SWEEPING = "object-store:collector"
DELETING = "object-store:deletions"
"""Locks: of who sweeps; and, shared, of who deletes objects that no row owns any more. A backup
takes both, for what the rows of its moment own has to be there until it has been copied."""

AGAIN_S = 30.0
"""How often it is asked whether a store that was not the database's is by now."""

LATELY_S = 1.0

_LOCK = "object-store:identity"
_log = structlog.get_logger(__name__)


class Record(msgspec.Struct, frozen=True):
    """What the store says of its database. `generation` is the database's own, or the one before,
    where a crash came between the two."""

    database: str
    generation: int


_UNREADABLE = Record("unreadable", 0)


class _Verdict(msgspec.Struct, frozen=True):
    """What was found of which database, and when (monotonic)."""

    database: Record
    problem: str | None
    at_s: float

    def holds_of(self, now: Record) -> bool:
        """Whether it need not be asked anew. While all is well, the generation only rises."""
        if self.problem is None:
            known = self.database
            return now.database == known.database and now.generation >= known.generation
        return now == self.database and time.monotonic() - self.at_s < AGAIN_S


class StoreIdentity:
    """One of these is in each process; workers ask it. `told` is what it found last, None before
    it has looked."""

    def __init__(self, db: Database, objects: ObjectStore) -> None:
        self._db = db
        self._objects = objects
        self._one = asyncio.Lock()  # so that those who wait hold no connection
        self.told: StoreTold | None = None
        self._verdict: _Verdict | None = None

    async def keep(self) -> None:
        """Compares, and raises the generation, for ever; cancel it to stop."""
        while True:
            await self.problem()
            await asyncio.sleep(EVERY_S)

    def tell(self, **found: object) -> None:
        """Have the others told of it as well, once it has looked."""
        if self.told is not None:
            self.told = replace(self.told, **found)

    async def agrees(self) -> bool:
        """Whether what the rows do not need may be removed from the store."""
        return await self.problem() is None

    async def agreed_lately(self) -> bool:
        """As `agrees`, asked once in a while however many want to know."""
        known = self._verdict
        if known is not None and time.monotonic() - known.at_s < LATELY_S:
            return known.problem is None
        return await self.agrees()

    async def belongs(self) -> bool:
        """As `agrees`, and cheap: of the same database what was found last, unless it was a problem
        some time ago."""
        async with self._db.admin_session() as session:
            row = await identity(session)
            now = Record(row.id, row.generation)
        verdict = self._verdict
        if verdict is not None and verdict.holds_of(now):
            return verdict.problem is None
        return await self.agrees()

    def tell_strange_usage(self, is_there: bool) -> None:
        """Whether usage waits that names tenants, while the database has none."""
        known = self.told or StoreTold()
        if known.strange_usage != is_there:
            if is_there:
                _log.error("usage waits in the engine's outbox", reason=STRANGE_USAGE)
            self.told = replace(known, strange_usage=is_there)

    async def problem(self) -> str | None:
        """Why the store is not this database's as it is now; None where it is, and then the next
        generation has begun."""
        async with self._one, self._db.admin_session() as session:
            await lock(session, _LOCK)
            record, row = await self.read(), await identity(session)
            found = await self.compare(session, record, row)
            self._verdict = _Verdict(Record(row.id, row.generation), found, time.monotonic())
            if found is None:
                await self._raise(record, row)
        known = self.told or StoreTold()
        if found != known.problem:
            if found is not None:
                _log.error(
                    "usage is not stored and waits in the engine's outbox, and garbage collection "
                    "of the object store has stopped",
                    reason=found,
                    remedy=REMEDY,
                )
            self.told = replace(known, problem=found)
        self.told = self.told or known
        return found

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[bool]:
        """Whether objects that no row owns any more may be deleted while the block runs: not while
        the store is not this database's, not during a backup, and not where that cannot be asked.
        A sweep finds them later."""
        async with AsyncExitStack() as stack:
            try:
                may = await self.belongs()
                if may:
                    session = await stack.enter_async_context(self._db.admin_session())
                    may = await try_lock_shared(session, DELETING)
            except (SQLAlchemyError, BaseError, OSError) as error:
                _log.warning("objects are left to the next sweep", reason=plain_reason(error))
                may = False
            yield may

    async def read(self) -> Record | None:
        """The store's record, None where there is none. One that says nothing is of no database."""
        try:
            result = await obstore.get_async(self._objects, OBJECT)
            if result.meta["size"] == 0:  # a folder's store cannot read that
                return _UNREADABLE
            return msgspec.json.decode(bytes(await result.bytes_async()), type=Record)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return _UNREADABLE

    async def adopt(self, session: AsyncSession) -> Record:
        """The store is this database's from the commit of `session` on, and the next sweep moves
        all that has no owner. Call `write` with the record after the commit."""
        await lock(session, _LOCK)
        record, row = await self.read(), await identity(session)
        generation = max(row.generation, record.generation if record else 0) + 1
        row.generation, row.adopted_at, row.sweep_all = generation, datetime.now(UTC), True
        await session.flush()
        return Record(row.id, generation)

    async def write(self, record: Record) -> None:
        await obstore.put_async(self._objects, OBJECT, msgspec.json.encode(record))

    async def compare(
        self, session: AsyncSession, record: Record | None, row: DatabaseIdentityRow
    ) -> str | None:
        """What keeps the store from being this database's, None if nothing does."""
        if record is None:
            if row.generation > 1:  # 1: a crash came before the first record
                return (
                    "The object store has no record of a database, and this database had a store: "
                    "it is another store, or a part of it is gone."
                )
            return await self._unlike(session)
        if record.database != row.id:
            return "The object store belongs to another database than this one."
        if record.generation > row.generation:
            return (
                f"The database (generation {row.generation}) is older than the object store "
                f"(generation {record.generation}), as after a restore."
            )
        if record.generation < row.generation - 1:
            return (
                f"The object store (generation {record.generation}) is older than the database "
                f"(generation {row.generation}), as after a restore."
            )
        return None

    async def _unlike(self, session: AsyncSession) -> str | None:
        """Whether the contents of a store without a record are other than the rows say: then it is
        not adopted at first sight."""
        found = await take_inventory(session, self._objects, prefixes=(CONTENTS,))
        if not found.unowned and not found.missing:
            return None
        return (
            "The object store has no record of a database and does not fit this one: "
            f"it has {len(found.unowned)} adapters that the database does not know, and lacks "
            f"{len(found.missing)} that it serves."
        )

    async def _raise(self, record: Record | None, row: DatabaseIdentityRow) -> None:
        """The database first: where the store does not hear of it, it is one behind, which is no
        problem, and hears of the same generation the next time."""
        new: dict[str, object] = {}
        if record is None:
            new = {"generation": 1, "adopted_at": datetime.now(UTC)}
        elif record.generation == row.generation:
            new = {"generation": row.generation + 1}
        if new:
            async with self._db.admin_session() as session:
                await session.execute(update(DatabaseIdentityRow).values(new))
        await self.write(Record(row.id, int(str(new.get("generation", row.generation)))))


async def identity(session: AsyncSession) -> DatabaseIdentityRow:
    """The database's own, as it is now."""
    return await session.get_one(DatabaseIdentityRow, True, populate_existing=True)
