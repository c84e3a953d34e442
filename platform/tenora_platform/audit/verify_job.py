"""A verification of the audit log and the ledger as a job: a few seconds of it at a time, in a
worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.audit.tables import AuditHeadRow, AuditRow, AuditVerifiedRow
from tenora_platform.audit.verification import BEGINNING
from tenora_platform.audit.witness import Witness
from tenora_platform.jobs.work import Asked, Kind, Step
from tenora_platform.ledger.verify import problems
from tenora_platform.operators.roles import READERS
from tenora_platform.state import AppState
from tenora_platform.tenants.tables import TenantRow

KIND = "audit_verification"
ROLES = READERS
"""Who may start and cancel one, and has to be able to while it runs."""
NAMED_MAX = 20
STEP_S = 2.0
"""After so long a step ends, with the batch of entries or the tenant's ledger that it is at."""
TENANTS_AT_ONCE = 50


@dataclass(frozen=True)
class VerificationJob:
    """First the chains of the audit log, then their ends, then each tenant's ledger. `mode`
    "recent": of the log only what was written since a chain was last found right, and no ledger."""

    state: AppState

    async def __call__(self, asked: Asked) -> Step:
        place = asked.place or {"log": BEGINNING}
        found = list(asked.result.get("problems", ()))
        recent = asked.spec["mode"] == "recent"
        total = asked.total
        if total is None:
            async with self.state.db.admin_session() as session:
                total = await _total(session, recent=recent)
        if "log" in place:
            step = await self._log(place["log"], recent=recent)
        elif "ends" in place:
            step = await self._ends(recent=recent)
        else:
            step = await self._ledgers(place["ledger"])
        named = [*found, *step.problems]
        result = {"problems": named[:NAMED_MAX], "count": asked.result.get("count", 0)}
        result["count"] += len(step.problems)
        return Step(step.place, asked.done + step.looked, total, result)

    async def _log(self, place: Mapping[str, Any], *, recent: bool) -> _Looked:
        verifier, sessions = self.state.audit.verifier, self.state.db.admin_session
        part = await verifier.part(sessions, place, STEP_S, recent=recent)
        after = {"ends": ""} if part.place is None else {"log": part.place}
        return _Looked(after, part.entries, part.problems)

    async def _ends(self, *, recent: bool) -> _Looked:
        """What no chain says of itself: that it is there, and was once longer."""
        witness = Witness(self.state.objects, self.state.secret)
        async with self.state.db.admin_session() as session:
            missing = await self.state.audit.verifier.missing(session)
            found = [*missing, *await witness.problems(session)]
        return _Looked(None if recent else {"ledger": ""}, 0, found)

    async def _ledgers(self, after: str) -> _Looked:
        query = select(TenantRow.id).where(TenantRow.id > after).order_by(TenantRow.id)
        async with self.state.db.admin_session() as session:
            tenants = list(await session.scalars(query.limit(TENANTS_AT_ONCE)))
        looked = _Looked(None if len(tenants) < TENANTS_AT_ONCE else {"ledger": tenants[-1]}, 0, [])
        ends_s = time.monotonic() + STEP_S
        for tenant_id in tenants:
            async with self.state.db.admin_session() as session:
                async for each in problems(session, self.state.ledger.chain, tenant_id):
                    looked.problems.append(each)
            looked.looked += 1
            if time.monotonic() >= ends_s and looked.looked < len(tenants):
                looked.place = {"ledger": tenant_id}
                break
        return looked


def verifications(state: AppState) -> Kind:
    """What a worker does of them."""
    return Kind(KIND, ROLES, VerificationJob(state))


@dataclass
class _Looked:
    place: Mapping[str, Any] | None
    looked: int  # entries of the log, or tenants
    problems: list[str]


async def _total(session: AsyncSession, *, recent: bool) -> int:
    """Of entries of the log, and of tenants whose ledgers are verified."""
    if recent:
        head, verified = AuditHeadRow, AuditVerifiedRow
        new = func.sum(head.seq - func.coalesce(verified.seq, 0))
        joined = select(new).select_from(head).outerjoin(verified, verified.chain == head.chain)
        return max(int(await session.scalar(joined) or 0), 0)
    entries = await session.scalar(select(func.count()).select_from(AuditRow))
    tenants = await session.scalar(select(func.count()).select_from(TenantRow))
    return (entries or 0) + (tenants or 0)
