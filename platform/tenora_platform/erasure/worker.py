"""Eraser: erases tenants whose grace period is over. One transaction takes what is in the database;
objects, the engine and other processes are told after it, each by means that come again after a
crash: the intake gives back contents of revoked versions, a sweep objects without an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from tenora_platform.erasure.fates import DELETED, condition
from tenora_platform.locks import lock
from tenora_platform.outages import log_failure
from tenora_platform.people.tables import MembershipRow
from tenora_platform.registry.forgetting import forget_content, forget_tenant
from tenora_platform.registry.storage import AdapterStorage, part_key
from tenora_platform.registry.tables import AdapterRow, AdapterVersionRow, UploadPartRow
from tenora_platform.state import AppState
from tenora_platform.tenants.repository import get_tenant
from tenora_platform.tenants.tables import TenantRow

EVERY_S = 60.0
_log = structlog.get_logger(__name__)

_INVOICED = """
SELECT EXISTS (SELECT 1 FROM invoices WHERE tenant_id = :tenant)
    OR EXISTS (SELECT 1 FROM usage_days WHERE tenant_id = :tenant)
"""


class Eraser:
    """One of these runs in each worker; a row's lock lets one of them erase it."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await self.run_once()
            await asyncio.sleep(EVERY_S)

    async def run_once(self) -> list[str]:
        """Erase whose time has come; their ids. Nobody is erased while the object store is another
        database's. Raises the first failure after all had their turn."""
        due = select(TenantRow.id).where(
            TenantRow.erase_after <= datetime.now(UTC), TenantRow.erased_at.is_(None)
        )
        async with self._state.db.admin_session() as session:
            found = list(await session.scalars(due))
        if found and not await self._state.store.agrees():
            return []  # who is due in a strange database may not be in the right one
        erased, failures = list[str](), list[Exception]()
        for tenant_id in found:
            try:
                if await self._erase(tenant_id):
                    erased.append(tenant_id)
            except Exception as error:  # those behind it have waited as long
                log_failure(_log, "tenant not erased", error, tenant=tenant_id, retry_s=EVERY_S)
                failures.append(error)
        if failures:
            raise failures[0]
        return erased

    async def _erase(self, tenant_id: str) -> bool:
        """Whether it was still to be erased."""
        now = datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            await lock(session, f"registry:{tenant_id}")
            row = await get_tenant(session, tenant_id, lock=True)
            if row is None or row.erase_after is None or row.erase_after > now or row.erased_at:
                return False  # restored, or another worker was first
            parts = await _parts(session, tenant_id)
            digests = await _revoke(session, tenant_id, now)
            people = await _members(session, tenant_id)
            for table in DELETED:
                await session.execute(
                    text(f"DELETE FROM {table} WHERE {condition(table)}"), {"tenant": tenant_id}
                )
            await _forget_people(session, people)
            if not await session.scalar(text(_INVOICED), {"tenant": tenant_id}):
                await session.execute(
                    text("DELETE FROM billing_profiles WHERE tenant_id = :tenant"),
                    {"tenant": tenant_id},
                )
            row.name = f"deleted {tenant_id[-8:]}"
            row.erased_at = row.updated_at = now
            await self._state.audit.append(
                session,
                actor="eraser",
                action="tenant.erase",
                target=tenant_id,
                tenant_id=tenant_id,
                after={"versions": len(digests), "people": len(people)},
            )
            trust_group = row.trust_group
        await self._give_back(tenant_id, trust_group, parts, digests)
        _log.info("tenant erased", tenant=tenant_id)
        return True

    async def _give_back(
        self, tenant_id: str, trust_group: str | None, parts: Sequence[str], digests: Sequence[str]
    ) -> None:
        state = self._state
        await state.auth.invalidate(tenant_id)
        await state.resolver.invalidate(tenant_id)
        for digest in digests:
            await forget_content(state, tenant_id, digest)
        await forget_tenant(state, tenant_id, trust_group)
        await AdapterStorage(state.objects, deleting=state.store.deleting).discard(parts)


async def _parts(session: AsyncSession, tenant_id: str) -> list[str]:
    """Where parts of its uploads lie."""
    part = UploadPartRow
    query = select(part.upload_id, part.id).where(part.tenant_id == tenant_id)
    return [part_key(upload, each) for upload, each in await session.execute(query)]


async def _revoke(session: AsyncSession, tenant_id: str, now: datetime) -> list[str]:
    """Its adapters have no names and no words any more; the intake releases their contents. The
    digests of what served."""
    version = AdapterVersionRow
    mine = version.tenant_id == tenant_id
    served = list(
        await session.scalars(select(version.digest).where(mine, version.digest.is_not(None)))
    )
    open_ = ("quarantined", "validating", "active", "deprecated")
    await session.execute(
        update(version)
        .where(mine, version.state.in_(open_))
        .values(state="revoked", revoked_at=now)
    )
    await session.execute(
        update(version)
        .where(mine)
        .values(upload_id=None, report=None, chat_template=None, created_by=None, damaged_at=None)
    )
    await session.execute(
        update(AdapterRow)
        .where(AdapterRow.tenant_id == tenant_id)
        .values(name=AdapterRow.id, deleted_at=now)
    )
    return [digest for digest in served if digest is not None]


async def _members(session: AsyncSession, tenant_id: str) -> list[str]:
    query = select(MembershipRow.person_id).where(MembershipRow.tenant_id == tenant_id)
    return list(await session.scalars(query))


async def _forget_people(session: AsyncSession, people: Sequence[str]) -> None:
    """Who belongs to nobody else by now."""
    belongs = select(MembershipRow.person_id).where(MembershipRow.person_id.in_(people))
    left = set(people) - set(await session.scalars(belongs))
    for person_id in left:
        for statement in (
            "DELETE FROM sessions WHERE person_id = :person",
            "UPDATE invitations SET used_by = NULL, email = NULL WHERE used_by = :person",
            "DELETE FROM people WHERE id = :person",
        ):
            await session.execute(text(statement), {"person": person_id})
