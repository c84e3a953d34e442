"""Walks the audit chains and says what is not as it was written, a bounded number of entries at a
time. It mends nothing."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit import repository
from tenora_platform.audit.heads import GENESIS, End, Heads, Kept
from tenora_platform.audit.tables import AuditHeadRow, AuditRow

BATCH = 1000
"""Entries read at once."""


@dataclass
class Part:
    """What one part of a verification found. `after`: the chain behind which the next one goes on;
    None: it was the last. `entries` were read."""

    after: str | None
    entries: int = 0
    problems: list[str] = field(default_factory=list)


class ChainVerifier:
    """`hash_of` computes what an entry's hash has to be."""

    def __init__(self, heads: Heads, hash_of: Callable[[AuditRow], str]) -> None:
        self._heads = heads
        self._hash_of = hash_of

    async def part(
        self, session: AsyncSession, after: str, most_entries: int, *, recent: bool = False
    ) -> Part:
        """Verify whole chains behind the one called `after`, by name, until so many entries have
        been read. `recent`: only what was written since a chain was last found right, which is
        remembered under a seal."""
        part = Part(after)
        while part.entries < most_entries:
            chain = await self._next_chain(session, part.after or "", recent=recent)
            if chain is None:
                part.after = None
                return part
            await self._verify(session, chain, part, recent=recent)
            part.after = chain
        return part

    async def missing(self, session: AsyncSession) -> list[str]:
        """Tenants whose chain is missing altogether: every one begins with their creation."""
        tenants = await repository.tenants_without_a_chain(session)
        return [f"tenant {each} has no audit log" for each in tenants]

    async def _next_chain(self, session: AsyncSession, after: str, *, recent: bool) -> str | None:
        """Of those that have entries or a kept end; `recent`: of those whose kept end has moved."""
        head = AuditHeadRow
        kept = select(func.min(head.chain)).where(head.chain > after)
        if recent:
            moved: str | None = await session.scalar(
                kept.where(func.coalesce(head.verified_seq, 0) < head.seq)
            )
            return moved
        written = select(func.min(AuditRow.chain)).where(AuditRow.chain > after)
        found = [await session.scalar(kept), await session.scalar(written)]
        return min((each for each in found if each is not None), default=None)

    async def _verify(self, session: AsyncSession, chain: str, part: Part, *, recent: bool) -> None:
        """One chain, to its end; names the first thing that is wrong with it."""
        begin = await self._known(session, chain) if recent else End(0, GENESIS)
        end, wrong = begin, None
        while True:
            head = (await self._heads.kept(session, [chain])).get(chain)
            rows = await repository.next_entries(session, chain, (chain, end.seq), BATCH)
            for row in rows:
                wrong = wrong or self._problem(row, end)
                end = End(row.seq, row.hash)
            part.entries += len(rows)
            session.expunge_all()  # a long log need not fit into memory
            if len(rows) < BATCH:
                break
        if wrong is not None:
            part.problems.append(wrong)
        faults = self._heads.problems({} if head is None else {chain: head}, {chain: end})
        part.problems += faults
        if wrong is None and not faults:
            await self._remember(session, chain, end)

    def _problem(self, row: AuditRow, before: End) -> str | None:
        where = f"entry {row.seq} ({row.id}) of chain {row.chain}"
        if row.seq != before.seq + 1:
            return f"entry {before.seq + 1} of chain {row.chain} is missing: found {row.seq}"
        if row.prev_hash != before.hash:
            return f"{where} does not match the hash of the entry before it"
        if not hmac.compare_digest(row.hash, self._hash_of(row)):
            return f"{where} was changed after it was written"
        return None

    async def _known(self, session: AsyncSession, chain: str) -> End:
        """Where it was found right; its beginning, where nobody says so under a seal, or the entry
        is another by now."""
        row = await session.get(AuditHeadRow, chain, populate_existing=True)
        if row is None or row.verified_seq is None:
            return End(0, GENESIS)
        known = Kept(row.verified_seq, row.verified_hash or "", row.verified_seal or "")
        query = select(AuditRow.hash).where(AuditRow.chain == chain, AuditRow.seq == known.seq)
        is_there = await session.scalar(query) == known.hash
        is_ours = self._heads.seals.holds(_verified(chain), known)
        return End(known.seq, known.hash) if is_there and is_ours else End(0, GENESIS)

    async def _remember(self, session: AsyncSession, chain: str, end: End) -> None:
        head = AuditHeadRow
        statement = (
            update(head)
            .where(head.chain == chain, func.coalesce(head.verified_seq, 0) < end.seq)
            .values(
                verified_seq=end.seq,
                verified_hash=end.hash,
                verified_seal=self._heads.seals.of(_verified(chain), *end),
            )
            .execution_options(synchronize_session=False)
        )
        await session.execute(statement)


def _verified(chain: str) -> str:
    """What a seal of a verified end is of; no chain is called so."""
    return f"verified:{chain}"
