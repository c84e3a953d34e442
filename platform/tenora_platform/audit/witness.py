"""A copy of where the audit chains end, in the object store: who can write to the database alone
cannot take it back with the entries. It is compared before it is written anew, and by a
verification."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from hashlib import sha256

import msgspec
import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import ObjectStore
from sqlalchemy import ARRAY, BigInteger, Text, column, func, literal, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.heads import Heads, Kept
from tenora_platform.audit.tables import AuditRow
from tenora_platform.db import Database, plain_reason
from tenora_platform.locks import try_lock
from tenora_platform.registry.store_identity import OBJECT as STORE_RECORD
from tenora_platform.registry.store_identity import StoreIdentity, identity
from tenora_platform.secret import ServerSecret

OBJECT = f"{STORE_RECORD}-audit"
EVERY_S = 600.0
_LOCK = "audit-witness"
_log = structlog.get_logger(__name__)


_End = tuple[int, str]


class _Copy(msgspec.Struct, frozen=True):
    """`database`: whose the log is. `ends`: the number and the hash of the last entry, by chain;
    `seal` is over both."""

    database: str
    ends: dict[str, _End]
    seal: str


class Witness:
    """One in each worker; a lock keeps them apart."""

    def __init__(self, objects: ObjectStore, secret: ServerSecret) -> None:
        self._objects = objects
        self._key = secret.key("audit-witness")
        self._heads = Heads(secret)

    async def keep(self, db: Database, store: StoreIdentity) -> None:
        """Compare and copy, for ever; cancel it to stop."""
        while True:
            try:
                if await store.agreed_lately():
                    await self.copy_once(db)
            except (SQLAlchemyError, BaseError, OSError) as error:
                _log.warning("ends of audit chains not copied", reason=plain_reason(error))
            await asyncio.sleep(EVERY_S)

    async def copy_once(self, db: Database) -> list[str]:
        """What is wrong. Of a chain with a problem the copy stays as it is, as evidence."""
        async with db.admin_session() as session:
            if not await try_lock(session, _LOCK):
                return []
            own = (await identity(session)).id
            copied = await self._read(own)
            kept = await self._heads.kept(session)
            wrong = await self._missing(session, copied) | self._lost(copied, kept)
            ends = dict(copied)
            for chain, head in kept.items():
                # An end that was put back must not take the copy back with it.
                if chain not in wrong and head.seq > ends.get(chain, (0, ""))[0]:
                    ends[chain] = (head.seq, head.hash)
            if ends != copied:
                content = msgspec.json.encode(_Copy(own, ends, self._seal(own, ends)))
                await obstore.put_async(self._objects, OBJECT, content)
        found = list(wrong.values())
        if found:
            _log.error("audit log does not match its copy", problems=found[:5])
        return found

    async def problems(self, session: AsyncSession) -> list[str]:
        """Entries that were copied and are not there, or are others by now. Nothing where there is
        no copy."""
        own = (await identity(session)).id
        copy = await self._sealed()
        if copy is not None and copy.database != own:
            return [
                f"the copy of the audit chains' ends is of the database {copy.database}, not of "
                f"{own}: it is another, or its identity was modified (`tenora store adopt` accepts)"
            ]
        ends = {} if copy is None else copy.ends
        return list((await self._missing(session, ends)).values())

    def _lost(self, copied: Mapping[str, _End], kept: Mapping[str, Kept]) -> dict[str, str]:
        """By chain, what is wrong with ends in the database."""
        gone = sorted(copied.keys() - kept.keys())
        lost = {chain: f"the kept end of chain {chain} is missing" for chain in gone}
        for chain, head in kept.items():
            if not self._heads.seals.holds(chain, head):
                lost[chain] = f"the kept end of chain {chain} was modified"
        return lost

    async def _missing(self, session: AsyncSession, ends: Mapping[str, _End]) -> dict[str, str]:
        if not ends:
            return {}
        wanted = (
            func.unnest(
                literal(list(ends), ARRAY(Text)),
                literal([seq for seq, _ in ends.values()], ARRAY(BigInteger)),
            )
            .table_valued(column("chain", Text), column("seq", BigInteger), name="wanted")
            .render_derived()
        )
        query = select(AuditRow.chain, AuditRow.hash).join(
            wanted, (wanted.c.chain == AuditRow.chain) & (wanted.c.seq == AuditRow.seq)
        )
        there = {row.chain: row.hash for row in await session.execute(query)}
        problems = {}
        for chain, (seq, hash_) in sorted(ends.items()):
            if chain not in there:
                problems[chain] = f"entry {seq} of chain {chain} is missing, which was copied"
            elif not hmac.compare_digest(there[chain], hash_):
                problems[chain] = f"entry {seq} of chain {chain} is not the one that was copied"
        return problems

    async def forget(self) -> None:
        """Of a database that the store has adopted: its chains may be shorter."""
        try:
            await obstore.delete_async(self._objects, OBJECT)
        except FileNotFoundError:
            return

    async def _read(self, own: str) -> dict[str, _End]:
        """Empty where there is none of this database's."""
        copy = await self._sealed()
        return copy.ends if copy is not None and copy.database == own else {}

    async def _sealed(self) -> _Copy | None:
        """Of whichever database. One that is not sealed by us says nothing, and is replaced."""
        try:
            result = await obstore.get_async(self._objects, OBJECT)
            if result.meta["size"] == 0:  # a folder's store cannot read that
                raise msgspec.DecodeError
            copy = msgspec.json.decode(bytes(await result.bytes_async()), type=_Copy)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            _log.error("copy of the audit chains' ends is unreadable")
            return None
        if not hmac.compare_digest(copy.seal, self._seal(copy.database, copy.ends)):
            _log.error("copy of the audit chains' ends was modified")
            return None
        return copy

    def _seal(self, database: str, ends: Mapping[str, _End]) -> str:
        content = msgspec.json.encode([database, sorted(ends.items())])
        return hmac.new(self._key, content, sha256).hexdigest()
