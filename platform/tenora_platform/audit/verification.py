"""Walks the audit chains and says what is not as it was written, for a bounded time. It mends
nothing, and holds no row that others write: each batch is read in a transaction of its own."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import chain as joined
from itertools import repeat
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit import repository
from tenora_platform.audit.heads import GENESIS, End, Heads, Kept
from tenora_platform.audit.tables import AuditHeadRow, AuditRow, AuditVerifiedRow

BATCH = 500
"""Entries read at once."""
BEGINNING: Mapping[str, Any] = {"after": ""}
_LOOKED_AT = (1, 8, 64)
"""Ends looked at for one that has moved: few at first, then ever more."""

Sessions = Callable[[], AbstractAsyncContextManager[AsyncSession]]


@dataclass
class Part:
    """What one part of a verification found. `place`: where the next one goes on, as JSON; None: it
    was the last. `entries` were read."""

    place: Mapping[str, Any] | None
    entries: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class _Walk:
    """Along one chain, up to `end`. Behind the first thing that is wrong, entries are counted
    only."""

    chain: str
    end: End
    is_wrong: bool = False


class ChainVerifier:
    """`hash_of` computes what an entry's hash has to be."""

    def __init__(self, heads: Heads, hash_of: Callable[[AuditRow], str]) -> None:
        self._heads = heads
        self._hash_of = hash_of

    async def part(
        self,
        sessions: Sessions,
        place: Mapping[str, Any],
        most_s: float,
        *,
        recent: bool = False,
    ) -> Part:
        """Verify chains from `place` on, by name, for `most_s` seconds, a batch at least. `recent`:
        only what was written since a chain was last found right, which is remembered under a
        seal."""
        part, ends_s = Part(place), time.monotonic() + most_s
        right = dict[str, End]()
        while part.place is not None:
            walk = await self._next(sessions, part.place, recent=recent)
            if walk is None:
                part.place = None
            elif await self._walk(sessions, walk, part, right, ends_s):
                part.place = {"after": walk.chain}
            else:
                part.place = self._place(walk)
            if time.monotonic() >= ends_s:
                break
        await self._remember(sessions, right)
        return part

    async def missing(self, session: AsyncSession) -> list[str]:
        """Tenants whose chain is missing altogether: every one begins with their creation."""
        tenants = await repository.tenants_without_a_chain(session)
        return [f"tenant {each} has no audit log" for each in tenants]

    async def _next(
        self, sessions: Sessions, place: Mapping[str, Any], *, recent: bool
    ) -> _Walk | None:
        """What was begun goes on, from the chain's beginning where nobody says under a seal how far
        it was; else the next chain."""
        if "chain" in place:
            chain, known = place["chain"], Kept(place["seq"], place["hash"], place["seal"])
            if place["wrong"] or self._holds(chain, known):
                return _Walk(chain, End(known.seq, known.hash), place["wrong"])
            return _Walk(chain, End(0, GENESIS))
        async with sessions() as session:
            if not recent:
                name = await _next_chain(session, place["after"])
                return None if name is None else _Walk(name, End(0, GENESIS))
            moved = await self._next_moved(session, place["after"])
            return None if moved is None else _Walk(moved, await self._known(session, moved))

    def _place(self, walk: _Walk) -> Mapping[str, Any]:
        """Within a chain. Only what was found right is sealed."""
        seal = "" if walk.is_wrong else self._heads.seals.of(_verified(walk.chain), *walk.end)
        return {
            "chain": walk.chain,
            "seq": walk.end.seq,
            "hash": walk.end.hash,
            "seal": seal,
            "wrong": walk.is_wrong,
        }

    async def _walk(
        self, sessions: Sessions, walk: _Walk, part: Part, right: dict[str, End], ends_s: float
    ) -> bool:
        """Whether the chain's end was reached; names the first thing that is wrong with it."""
        while True:
            async with sessions() as session:
                head = (await self._heads.kept(session, [walk.chain])).get(walk.chain)
                place = (walk.chain, walk.end.seq)
                rows = await repository.next_entries(session, walk.chain, place, BATCH)
            self._check(walk, rows, part)
            if len(rows) < BATCH:
                break
            if time.monotonic() >= ends_s:
                return False
        heads = {} if head is None else {walk.chain: head}
        faults = self._heads.problems(heads, {walk.chain: walk.end})
        part.problems += faults
        if not walk.is_wrong and not faults:
            right[walk.chain] = walk.end
        return True

    def _check(self, walk: _Walk, rows: list[AuditRow], part: Part) -> None:
        for row in rows:
            wrong = None if walk.is_wrong else self._problem(row, walk.end)
            if wrong is not None:
                walk.is_wrong = True
                part.problems.append(wrong)
            walk.end = End(row.seq, row.hash)
        part.entries += len(rows)

    def _problem(self, row: AuditRow, before: End) -> str | None:
        where = f"entry {row.seq} ({row.id}) of chain {row.chain}"
        if row.seq != before.seq + 1:
            return f"entry {before.seq + 1} of chain {row.chain} is missing: found {row.seq}"
        if row.prev_hash != before.hash:
            return f"{where} does not match the hash of the entry before it"
        if not hmac.compare_digest(row.hash, self._hash_of(row)):
            return f"{where} was changed after it was written"
        return None

    async def _next_moved(self, session: AsyncSession, after: str) -> str | None:
        """The next chain of which nobody says under a seal that it was found right to its end."""
        head, verified = AuditHeadRow, AuditVerifiedRow
        query = (
            select(head.chain, head.seq, verified.seq, verified.hash, verified.seal)
            .outerjoin(verified, verified.chain == head.chain)
            .order_by(head.chain)
        )
        for limit in joined(_LOOKED_AT, repeat(BATCH)):
            rows = (await session.execute(query.where(head.chain > after).limit(limit))).all()
            for chain, seq, known, hash_, seal in rows:
                if known != seq or not self._holds(chain, Kept(known, hash_, seal)):
                    return str(chain)
                after = chain
            if len(rows) < limit:
                return None
        return None

    def _holds(self, chain: str, known: Kept) -> bool:
        return self._heads.seals.holds(_verified(chain), known)

    async def _known(self, session: AsyncSession, chain: str) -> End:
        """Where it was found right; its beginning, where nobody says so under a seal, or the entry
        is another by now."""
        row = await session.get(AuditVerifiedRow, chain)
        if row is None:
            return End(0, GENESIS)
        query = select(AuditRow.hash).where(AuditRow.chain == chain, AuditRow.seq == row.seq)
        is_there = await session.scalar(query) == row.hash
        is_ours = self._holds(chain, Kept(row.seq, row.hash, row.seal))
        return End(row.seq, row.hash) if is_there and is_ours else End(0, GENESIS)

    async def _remember(self, sessions: Sessions, right: Mapping[str, End]) -> None:
        """In a short transaction, over rows that nobody else writes."""
        if not right:
            return
        row, seals = AuditVerifiedRow, self._heads.seals
        values = [
            {
                "chain": chain,
                "seq": end.seq,
                "hash": end.hash,
                "seal": seals.of(_verified(chain), *end),
            }
            for chain, end in sorted(right.items())
        ]
        statement = insert(row)
        new = {name: statement.excluded[name] for name in ("seq", "hash", "seal")}
        statement = statement.on_conflict_do_update(
            index_elements=[row.chain], set_=new, where=row.seal != statement.excluded.seal
        )
        async with sessions() as session:
            await session.execute(statement, values)


async def _next_chain(session: AsyncSession, after: str) -> str | None:
    """Of those that have entries or a kept end."""
    head = AuditHeadRow
    kept = select(func.min(head.chain)).where(head.chain > after)
    written = select(func.min(AuditRow.chain)).where(AuditRow.chain > after)
    found = [await session.scalar(kept), await session.scalar(written)]
    return min((each for each in found if each is not None), default=None)


def _verified(chain: str) -> str:
    """What a seal of a verified end is of; no chain is called so."""
    return f"verified:{chain}"
