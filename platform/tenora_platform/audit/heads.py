"""Where each audit chain ends, kept beside its entries under a seal: a chain says of every entry
but its last that it is there. It does not know what entries say."""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import NamedTuple

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit import repository
from tenora_platform.audit.tables import AuditHeadRow
from tenora_platform.secret import ServerSecret

GENESIS = "0" * 64
_log = structlog.get_logger(__name__)


class End(NamedTuple):
    """The number and the hash of a chain's last entry."""

    seq: int
    hash: str


class Kept(NamedTuple):
    """A row of `audit_heads`."""

    seq: int
    hash: str
    seal: str


class AuditSeals:
    """MACs of ends under the server secret: who can write to the database cannot move one."""

    def __init__(self, secret: ServerSecret) -> None:
        self._key = secret.key("audit-heads")

    def of(self, chain: str, seq: int, hash_: str) -> str:
        message = json.dumps([chain, seq, hash_], separators=(",", ":")).encode()
        return hmac.new(self._key, message, sha256).hexdigest()

    def holds(self, chain: str, kept: Kept) -> bool:
        return hmac.compare_digest(kept.seal, self.of(chain, kept.seq, kept.hash))


class Heads:
    """Read and moved on under the chain's lock."""

    def __init__(self, secret: ServerSecret) -> None:
        self.seals = AuditSeals(secret)

    async def last(self, session: AsyncSession, chain: str) -> tuple[AuditHeadRow | None, End]:
        """Where the next entry goes on: behind the kept end, where entries are missing before it.
        So one that was removed leaves a gap. Entries behind the kept end are no less than they
        were: their hashes say whether they are ours."""
        row = await session.get(AuditHeadRow, chain, populate_existing=True)
        last = await repository.last_of(session, chain)
        there = End(0, GENESIS) if last is None else End(last.seq, last.hash)
        if row is not None and row.seq >= there.seq:
            return row, End(row.seq, row.hash)
        return row, there

    def move(self, session: AsyncSession, row: AuditHeadRow | None, chain: str, end: End) -> None:
        """One that was changed by hand is not sealed anew: verification tells of it. One that is
        missing is made again: its copy in the object store tells what it was."""
        if row is None:
            seal = self.seals.of(chain, *end)
            session.add(AuditHeadRow(chain=chain, seq=end.seq, hash=end.hash, seal=seal))
            return
        holds = self.seals.holds(chain, Kept(row.seq, row.hash, row.seal))
        row.seq, row.hash = end
        if holds:
            row.seal = self.seals.of(chain, *end)
        else:
            _log.error("the end of an audit chain was modified", chain=chain)

    async def kept(
        self, session: AsyncSession, chains: Collection[str] | None = None
    ) -> dict[str, Kept]:
        """By chain; of all, or of these."""
        head = AuditHeadRow
        query = select(head.chain, head.seq, head.hash, head.seal)
        if chains is not None:
            query = query.where(head.chain.in_(chains))
        rows = await session.execute(query)
        return {chain: Kept(seq, hash_, seal) for chain, seq, hash_, seal in rows}

    def problems(self, kept: Mapping[str, Kept], found: Mapping[str, End]) -> list[str]:
        """What is wrong with the ends that were kept before the entries were read, which end as
        `found` says, by chain. Later entries are no fault: they were written meanwhile."""
        problems = []
        for chain in sorted(kept.keys() | found.keys()):
            head, end = kept.get(chain), found.get(chain, End(0, GENESIS))
            if head is None:
                problems.append(f"the kept end of chain {chain} is missing")
            elif not self.seals.holds(chain, head):
                problems.append(f"the kept end of chain {chain} was modified")
            elif head.seq > end.seq:
                problems.append(
                    f"chain {chain} ends with entry {end.seq}, and entry {head.seq} was written"
                )
            elif head.seq == end.seq and head.hash != end.hash:
                problems.append(f"entry {end.seq} of chain {chain} is not the one that was written")
        return problems
