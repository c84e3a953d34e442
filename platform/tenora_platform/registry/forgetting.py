"""Forgetter: tells this process's engine of versions that were revoked, by whichever process, so
that memory and cached KV are given back everywhere. All it needs to know is in the database."""

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
        self._times: dict[str, int] = {}  # version -> how often the engine has been told
        self._since = datetime.now(UTC) - LOOK_BACK

    async def run(self) -> None:
        """Works for ever; cancel it to stop."""
        while True:
            await self.run_once()
            await asyncio.sleep(POLL_S)

    async def run_once(self, now: datetime | None = None) -> None:
        """Tell the engine of what was revoked since it was told last."""
        if not self._state.engine.ready:
            return
        now = now or datetime.now(UTC)
        async with self._state.db.admin_session() as session:
            revoked = await repository.revoked_since(session, self._since)
        due = {row.id: times for row in revoked if (times := self._due(row, now))}
        await self._tell([row for row in revoked if row.id in due])
        known = {row.id for row in revoked}
        self._times = {key: times for key, times in (self._times | due).items() if key in known}
        # Twice the time: a transaction commits after the time that it has written down.
        self._since = max(self._since, now - 2 * AGAIN_AFTER)

    def _due(self, row: AdapterVersionRow, now: datetime) -> int:
        """How often the engine will have been told of it, or 0 if it need not be now."""
        assert row.revoked_at is not None  # asked for
        times = 1 + (now >= row.revoked_at + AGAIN_AFTER)
        return times if self._times.get(row.id, 0) < times else 0

    async def _tell(self, rows: Sequence[AdapterVersionRow]) -> None:
        for tenant_id in {row.tenant_id for row in rows}:
            await self._resolver.invalidate(tenant_id)  # the deleting process may have died first
        for tenant_id, digest in {(row.tenant_id, row.digest) for row in rows if row.digest}:
            await forget_content(self._state, tenant_id, digest)
        if rows:
            _log.info("revoked adapters forgotten", count=len(rows))


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
