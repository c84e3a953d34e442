"""Forgetter: tells this process's engine of versions that were revoked and of tenants that were
suspended, by whichever process, so that memory and cached KV are given back everywhere. All it
needs to know is in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog

from tenora_platform.auth import tenant_namespace
from tenora_platform.registry import repository
from tenora_platform.registry.resolver import FOUND_TTL_S
from tenora_platform.registry.tables import AdapterVersionRow
from tenora_platform.state import AppState

POLL_S = 2.0
AGAIN_AFTER = timedelta(seconds=2 * FOUND_TTL_S)
"""A request that knew the version before it was revoked may reach the engine after it was told, and
cache there again what nobody can ask for. By then the last has come."""
LOOK_BACK = timedelta(days=1)
"""What a starting process tells its engine, which may have been running without it."""

_log = structlog.get_logger(__name__)


class Forgetter:
    """One of these runs in each process, for its own engine. Telling twice changes nothing."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._resolver = state.resolver
        # Version or tenant, and since when -> how often the engine has been told.
        self._times: dict[tuple[str, datetime], int] = {}
        self._since = datetime.now(UTC) - LOOK_BACK

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await self.run_once()
            await asyncio.sleep(POLL_S)

    async def run_once(self, now: datetime | None = None) -> None:
        """Tell the engine of what was revoked or suspended since it was told last."""
        if not self._state.engine.ready:
            return
        now = now or datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            revoked = await repository.revoked_since(session, self._since)
            spaces = await repository.suspended_since(session, self._since)
        events = {(row.id, row.revoked_at): row for row in revoked if row.revoked_at is not None}
        tenants = {(row.id, row.updated_at): row for row in spaces}
        times = {key: self._due(key, now) for key in (*events, *tenants)}
        due = {key: count for key, count in times.items() if count}
        await self._tell([row for key, row in events.items() if key in due])
        for key, row in tenants.items():
            if key in due:
                await forget_tenant(self._state, row.id, row.trust_group)
        self._times = {key: count or self._times[key] for key, count in times.items()}
        # Twice the time: a transaction commits after the time that it has written down.
        self._since = max(self._since, now - 2 * AGAIN_AFTER)

    def _due(self, key: tuple[str, datetime], now: datetime) -> int:
        """How often the engine will have been told of it, or 0 if it need not be now."""
        times = 1 + (now >= key[1] + AGAIN_AFTER)
        return times if self._times.get(key, 0) < times else 0

    async def _tell(self, rows: Sequence[AdapterVersionRow]) -> None:
        for tenant_id in {row.tenant_id for row in rows}:
            await self._resolver.invalidate(tenant_id)  # the deleting process may have died first
        for tenant_id, digest in {(row.tenant_id, row.digest) for row in rows if row.digest}:
            await forget_content(self._state, tenant_id, digest)
        if rows:
            _log.info("revoked adapters forgotten", count=len(rows))


async def forget_tenant(state: AppState, tenant_id: str, trust_group: str | None) -> None:
    """Have this process's engine give back what it has cached for a suspended tenant, the base
    model's KV included, unless it is cached for others of its trust group as well."""
    async with state.db.admin_session() as session:
        if trust_group is not None and await repository.is_active_group(session, trust_group):
            return
    await state.engine.forget_namespace(tenant_namespace(state.secret, tenant_id, trust_group))


async def forget_content(state: AppState, tenant_id: str, digest: str) -> None:
    """Have this process's engine give back what it holds of the content for the tenant, unless it
    is still served under another name or number. What runs on it is not disturbed."""
    async with state.db.admin_session() as session:
        if await repository.digest_in_use(session, digest, tenant_id):
            return
        trust_group = await repository.trust_group(session, tenant_id)
    await state.engine.forget_adapter(
        tenant_namespace(state.secret, tenant_id, trust_group), digest
    )
