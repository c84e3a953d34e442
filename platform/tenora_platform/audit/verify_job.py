"""A verification of the audit log and the ledger as a job: some chains at a time, in a worker."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.tables import AuditHeadRow, AuditRow
from tenora_platform.audit.witness import Witness
from tenora_platform.jobs.work import Asked, Step
from tenora_platform.ledger.verify import problems
from tenora_platform.state import AppState
from tenora_platform.tenants.tables import TenantRow

KIND = "audit_verification"
NAMED_MAX = 20
ENTRIES_AT_ONCE = 20_000
TENANTS_AT_ONCE = 50


@dataclass(frozen=True)
class VerificationJob:
    """First the chains of the audit log, then each tenant's ledger. `mode` "recent": of the log
    only what was written since a chain was last found right, and no ledger."""

    state: AppState

    async def __call__(self, asked: Asked) -> Step:
        place = asked.place or {"log": ""}
        found = list(asked.result.get("problems", ()))
        recent = asked.spec["mode"] == "recent"
        async with self.state.db.admin_session() as session:
            total = asked.total
            if total is None:
                total = await _total(session, recent=recent)
            if "log" in place:
                step = await self._log(session, place["log"], recent=recent)
            else:
                step = await self._ledger(session, place["ledger"])
        named = [*found, *step.problems]
        result = {"problems": named[:NAMED_MAX], "count": asked.result.get("count", 0)}
        result["count"] += len(step.problems)
        return Step(step.place, asked.done + step.looked, total, result)

    async def _log(self, session: AsyncSession, after: str, *, recent: bool) -> _Looked:
        verifier = self.state.audit.verifier
        part = await verifier.part(session, after, ENTRIES_AT_ONCE, recent=recent)
        if part.after is not None:
            return _Looked({"log": part.after}, part.entries, part.problems)
        witness = Witness(self.state.objects, self.state.secret)
        missing = [*await verifier.missing(session), *await witness.problems(session)]
        place = None if recent else {"ledger": ""}
        return _Looked(place, part.entries, [*part.problems, *missing])

    async def _ledger(self, session: AsyncSession, after: str) -> _Looked:
        query = select(TenantRow.id).where(TenantRow.id > after).order_by(TenantRow.id)
        tenants = list(await session.scalars(query.limit(TENANTS_AT_ONCE)))
        found = [
            each
            for tenant_id in tenants
            async for each in problems(session, self.state.ledger.chain, tenant_id)
        ]
        is_last = len(tenants) < TENANTS_AT_ONCE
        return _Looked(None if is_last else {"ledger": tenants[-1]}, len(tenants), found)


@dataclass(frozen=True)
class _Looked:
    place: dict[str, str] | None
    looked: int  # entries of the log, or tenants
    problems: list[str]


async def _total(session: AsyncSession, *, recent: bool) -> int:
    """Of entries of the log, and of tenants whose ledgers are verified."""
    if recent:
        head = AuditHeadRow
        new = func.sum(head.seq - func.coalesce(head.verified_seq, 0))
        return int(await session.scalar(select(new)) or 0)
    entries = await session.scalar(select(func.count()).select_from(AuditRow))
    tenants = await session.scalar(select(func.count()).select_from(TenantRow))
    return (entries or 0) + (tenants or 0)
